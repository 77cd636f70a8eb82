/*
 * all-MiniLM-L6-v2: sentences to embeddings, in plain C
 *
 * A BERT encoder of six layers over weights that another owner holds: the code is the same for
 * weights shared by weightd and read from a file. One thread, a fixed order of additions and no
 * fast-math: the same bytes give the same bits at any address.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define MINILM_VOCAB 30522
#define MINILM_POSITIONS 512
#define MINILM_HIDDEN 384
#define MINILM_INTERMEDIATE 1536
#define MINILM_LAYERS 6
#define MINILM_TOKENS_MAX 256 /* the model was trained for it; longer sentences are cut */

/* y = x weight^T + bias, or the scale and shift of a normalisation. */
struct minilm_affine {
	const float *weight;
	const float *bias;
};

struct minilm_layer {
	struct minilm_affine query, key, value, attended, attended_norm;
	struct minilm_affine up, down, norm;
};

/* Pointers only; the owner of the look-ups owns the weights. */
struct minilm {
	const float *words, *positions, *types;
	struct minilm_affine norm;
	struct minilm_layer layers[MINILM_LAYERS];
};

/* The values of the F32 tensor of that name and shape; NULL if there is none. */
typedef const float *(*minilm_lookup_fn)(void *userdata, const char *name, uint32_t n_dims,
					 const uint64_t *shape);

#define MINILM_NAME_MAX 96

/* -ENOENT when a tensor is absent or shaped otherwise; `ret_missing` then has its name. */
int minilm_bind(struct minilm *m, minilm_lookup_fn lookup, void *userdata,
		char ret_missing[MINILM_NAME_MAX]);

/*
 * The embedding of one sentence: the mean over its tokens, scaled to length 1. -EINVAL: no tokens, too
 * many, or an id outside the vocabulary. -ENOMEM.
 */
int minilm_embed(const struct minilm *m, const uint32_t *ids, size_t n_ids,
		 float ret[MINILM_HIDDEN]);

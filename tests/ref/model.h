/*
 * A small model with a backward pass written by hand
 *
 * Embedding of tokens and positions, one block (attention by heads, then an MLP, each behind a norm), and a head that
 * classifies each token. All numbers are fp32, all loops have a fixed order, and gradients are added sample by sample: the
 * same samples in the same order make the same bits.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define MODEL_TENSORS_MAX 24

struct model_options {
	bool without_attention; /* an MLP on embeddings */
	bool rms_norm; /* instead of layer norm */
	bool has_side; /* a layer that not every sample uses */
	uint32_t vocab, length, width, heads, hidden, classes;
	uint32_t ballast; /* rows of a table that no sample uses: work for the optimizer */
	double dropout;
};

/* In the order of forward. Backward reads parameters in the opposite one. */
enum model_module {
	MODEL_EMBEDDING,
	MODEL_BALLAST,
	MODEL_SIDE,
	MODEL_NORM1,
	MODEL_QKV,
	MODEL_OUT,
	MODEL_NORM2,
	MODEL_UP,
	MODEL_DOWN,
	MODEL_HEAD,
	MODEL_MODULES,
};

struct model_tensor {
	const char *name;
	enum model_module module;
	uint64_t shape[2];
	uint32_t n_dims;
	uint64_t n; /* elements */
	bool is_buffer; /* fp32 mean of the block's outputs, and u64 count of tokens */
	bool decays; /* a matrix: in the parameter group with weight decay */
};

struct model_sample {
	const uint32_t *tokens, *targets; /* length of each */
	bool uses_side;
};

/* One forward and backward pass of samples, module by module. Addresses are by tensor. */
struct model_pass {
	const float *const *params;
	float *const *grads; /* added to; NULL: forward only */
	void *const *buffers; /* NULL: left alone */
	float scale; /* factor of a sample's mean loss in the loss that is differentiated */
	uint64_t *rng; /* state of dropout's random numbers, advanced by each sample */
	/* Called before the parameters of a module are read, and with MODEL_MODULES between forward and backward; NULL: not */
	void (*enter)(void *arg, enum model_module module, bool is_backward);
	void (*complete)(void *arg,
			 uint32_t tensor); /* called when backward is done with a tensor; NULL: not */
	void *arg;
};

struct model;

struct model *model_new(const struct model_options *options);
void model_free(struct model *m);
uint32_t model_n_tensors(const struct model *m);
const struct model_tensor *model_tensor(const struct model *m, uint32_t i);
/* First values of a parameter, a pure function of the seed. */
void model_init(const struct model *m, uint32_t tensor, uint64_t seed, float *ret);
/* Returns the sum of the mean losses of each sample's tokens, in their order. */
double model_run(struct model *m, const struct model_sample *samples, uint32_t n,
		 const struct model_pass *p);

/* splitmix64: advances the state. */
uint64_t model_random(uint64_t *state);
/* In [0, 1). */
float model_uniform(uint64_t *state);

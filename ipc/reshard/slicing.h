/*
 * Slicings
 *
 * How tensor parallelism cuts the tensors of a model: which dimension of a tensor the ranks share, and in what units. Rules
 * are ready for models by their `model_type`, the word of a config.json, or in a text (ipc/reshard/slicing_read.h). Pure
 * arithmetic, without input or output.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define SLICING_TEXT_MAX ((size_t)1 << 20) /* bytes */
#define SLICING_RULES_MAX 1024
#define SLICING_DIM_MAX 31
#define SLICING_WHOLE (-1)
#define SLICING_PARTS_MAX 4
#define SLICING_WORLD_MAX 4096
#define SLICING_HEADS_MAX ((uint64_t)1 << 20)
#define SLICING_WHY_SIZE 320

/* The units in which ranks share a part of a dimension. */
enum slicing_unit {
	SLICING_NONE, /* ends a list */
	SLICING_EVEN, /* elements; each rank has as many */
	SLICING_RAGGED, /* elements as torch.chunk() divides them: the last ranks may have fewer, or none */
	SLICING_HEADS, /* heads of queries; each rank has as many */
	SLICING_KV_HEADS, /* heads of keys and values; if they are fewer than ranks, several ranks have the same */
};

struct slicing_rule {
	const char *tensors; /* a pattern */
	int dim; /* or SLICING_WHOLE: every rank has all of the tensor */
	/* The parts that stand side by side in the dimension, each of which all ranks share: three of a fused qkv. */
	enum slicing_unit parts[SLICING_PARTS_MAX + 1];
};

/* Rules for a kind of model. */
struct slicing_ready {
	const char *model_type;
	const struct slicing_rule *lists[4]; /* each ends with a rule without a pattern; NULL ends them */
};

struct slicing {
	char *text; /* has the patterns */
	struct slicing_rule *rules; /* of the text */
	size_t n_rules;
	const struct slicing_ready *ready; /* behind them; NULL: none */
	uint32_t heads, kv_heads; /* 0: unknown */
};

/* NULL: there are none for it. */
const struct slicing_ready *slicing_ready_find(const char *model_type);
/* By index, in alphabetical order; NULL behind the last. */
const struct slicing_ready *slicing_ready_at(size_t i);

void slicing_deinit(struct slicing *s);

/* NULL: none of the rules is about it. */
const struct slicing_rule *slicing_find(const struct slicing *s, const char *name);

struct slicing_range {
	uint64_t first, size; /* elements of the dimension; never 0 of them */
};

/*
 * The share of a rank in a dimension of `n` elements, at most INT64_MAX: ascending ranges, which do not touch. No range: it
 * has nothing of it. -EINVAL with a sentence about the dimension: they cannot share it.
 */
int slicing_cut(const struct slicing *s, const struct slicing_rule *rule, uint64_t n, unsigned rank,
		unsigned world, struct slicing_range ret[SLICING_PARTS_MAX], unsigned *ret_n,
		char why[SLICING_WHY_SIZE]);

/*
 * Splits
 *
 * How the tensors of a model are cut into shards, one for each rank, in a file that people write:
 *
 *	{"split": [
 *		{"tensors": "*.o_proj.weight", "from": 0, "to": 1},
 *		{"tensors": "*.weight", "dim": 0},
 *		{"tensors": "*", "replicated": true}
 *	]}
 *
 * The first rule with a matching pattern (ipc/base/pattern.h) applies. Along a dimension of n and
 * over r ranks, torch.chunk() defines the shards: each has ceil(n / r), except the last ones, of which one has fewer
 * and others may have none. Every rank has all of a replicated tensor. `from` is the present split, `to` the new one;
 * `dim` and `replicated` set both.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define SPLIT_SIZE_MAX ((size_t)1 << 20) /* bytes of the text */
#define SPLIT_RULES_MAX 1024
#define SPLIT_PATTERN_MAX 1024
#define SPLIT_DIM_MAX 31
#define SPLIT_REPLICATED (-1)
#define SPLIT_WHY_SIZE 512

struct split_rule {
	char *tensors;
	int from; /* a dimension, or SPLIT_REPLICATED */
	int to;
};

struct split {
	struct split_rule *rules;
	size_t n_rules;
};

/* From anybody. -EBADMSG with a sentence, -ENOMEM. */
int split_read(const char *text, size_t size, struct split *ret, char why[SPLIT_WHY_SIZE]);
void split_deinit(struct split *s);

/* NULL: none of the rules is about it. */
const struct split_rule *split_find(const struct split *s, const char *name);

/* The shard of a rank: where it begins in a dimension of `n`, and how much of it it has. `n` is at most INT64_MAX. */
void split_shard(uint64_t n, unsigned n_ranks, unsigned rank, uint64_t *ret_first,
		 uint64_t *ret_size);

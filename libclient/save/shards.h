/*
 * Shards
 *
 * The files of a save, by size: each has a run of the tensors. A tensor is never divided, so one that is larger than
 * the size asked for has a file of its own.
 */
#pragma once

#include <stdint.h>

#include "ipc/layout.h"

struct shard {
	uint32_t first, n; /* in shards::order */
	uint64_t n_bytes; /* sum over its tensors */
};

struct shards {
	uint32_t *order; /* indices of the tensors that are not tied, in the order of their bytes in the files */
	uint32_t n_tensors;
	struct shard *list;
	uint32_t n; /* at least 1 */
};

/*
 * Divides the tensors of a layout, which keep its order if each of them is then aligned to its elements, or `keep_order`
 * is set; otherwise they have that of packing_order(). -ENOMEM.
 */
int shards_init(struct shards *s, const struct layout *l, uint64_t shard_size, bool keep_order);
void shards_deinit(struct shards *s);

/*
 * The path of shard `i` of weights called `weights` ("model.safetensors"): the same for a single one,
 * "model-00001-of-00002.safetensors" otherwise. The caller frees it. NULL: out of memory.
 */
char *shards_path(const struct shards *s, const char *weights, uint32_t i);
/* The path of their index. The caller frees it. NULL: out of memory. */
char *shards_index_path(const char *weights);

/* The index that assigns each tensor to its file: text that the caller frees. NULL: out of memory. */
char *shards_index(const struct shards *s, const struct layout *l, const char *weights);

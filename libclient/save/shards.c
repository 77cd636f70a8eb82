#include "libclient/save/shards.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/dtype.h"
#include "libclient/image/array.h"
#include "libclient/image/packing.h"

#define EXTENSION ".safetensors"

/* --- Order ------------------------------------------------------------------------------------ */

/* In the order of the layout. True if each tensor is aligned to its elements with nothing between them. */
static bool order_as_is(struct shards *s, const struct layout *l)
{
	bool is_aligned = true;
	uint64_t end = 0;

	for (uint32_t i = 0; i < l->header->n_tensors; i++) {
		const struct layout_tensor *t = &l->tensors[i];
		unsigned element = dtype_bits(t->dtype) / 8;

		if (layout_untied(l, i) != i)
			continue;
		s->order[s->n_tensors++] = i;
		is_aligned &= element < 2 || end % element == 0;
		end += t->n_bytes;
	}
	return is_aligned;
}

static int shards_divide(struct shards *s, const struct layout *l, uint64_t shard_size)
{
	size_t n = 0, max = 0;

	for (uint32_t i = 0; i < s->n_tensors; i++) {
		uint64_t n_bytes = l->tensors[s->order[i]].n_bytes;
		struct shard *last = n ? &s->list[n - 1] : NULL;

		if (!last ||
		    (last->n_bytes > 0 && n_bytes > 0 &&
		     (last->n_bytes >= shard_size || n_bytes > shard_size - last->n_bytes))) {
			if (!array_reserve(s->list, n, max))
				return -ENOMEM;
			last = &s->list[n++];
			*last = (struct shard){.first = i};
		}
		last->n++;
		last->n_bytes += n_bytes;
	}
	s->n = (uint32_t)n;
	return 0;
}

int shards_init(struct shards *s, const struct layout *l, uint64_t shard_size, bool keep_order)
{
	s->order = calloc(l->header->n_tensors, sizeof(*s->order));
	if (!s->order)
		return -ENOMEM;
	if (!order_as_is(s, l) && !keep_order)
		s->n_tensors = packing_order(l, s->order);
	return shards_divide(s, l, shard_size);
}

void shards_deinit(struct shards *s)
{
	free(s->order);
	free(s->list);
	*s = (struct shards){0};
}

/* --- Names ------------------------------------------------------------------------------------ */

/* Characters of `weights` without its extension. */
static int stem_size(const char *weights)
{
	size_t n = strlen(weights), cut = strlen(EXTENSION);

	if (n > cut && !strcmp(weights + n - cut, EXTENSION))
		return (int)(n - cut);
	return (int)n;
}

char *shards_path(const struct shards *s, const char *weights, uint32_t i)
{
	char *path;
	int r;

	if (s->n == 1)
		return strdup(weights);
	r = asprintf(&path, "%.*s-%05u-of-%05u" EXTENSION, stem_size(weights), weights, i + 1, s->n);
	return r < 0 ? NULL : path;
}

char *shards_index_path(const char *weights)
{
	char *path;

	if (asprintf(&path, "%.*s" EXTENSION ".index.json", stem_size(weights), weights) < 0)
		return NULL;
	return path;
}

/* --- Index ------------------------------------------------------------------------------------ */

/* The index is beside its files: it has their names without the folder. */
static const char *name_of(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

static int map_shard(const struct shards *s, const struct layout *l, const char *weights,
		     uint32_t i, json_t *map)
{
	const struct shard *shard = &s->list[i];
	cleanup(freep) char *path = shards_path(s, weights, i);

	for (uint32_t k = shard->first; path && k < shard->first + shard->n; k++) {
		const struct layout_tensor *t = &l->tensors[s->order[k]];

		if (json_object_set_new(map, layout_tensor_name(l, t), json_string(name_of(path))) <
		    0)
			return -ENOMEM;
	}
	return path ? 0 : -ENOMEM;
}

char *shards_index(const struct shards *s, const struct layout *l, const char *weights)
{
	cleanup(json_decrefp) json_t *map = json_object(), *index = NULL;
	uint64_t total = 0;
	int r = map ? 0 : -ENOMEM;

	for (uint32_t i = 0; r == 0 && i < s->n; i++) {
		r = map_shard(s, l, weights, i, map);
		total += s->list[i].n_bytes;
	}
	if (r == 0)
		index = json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t)total,
				  "weight_map", map);
	return index ? json_dumps(index, JSON_INDENT(2)) : NULL;
}

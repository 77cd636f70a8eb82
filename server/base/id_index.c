#include "server/base/id_index.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

size_t id_index_after(const struct id_index *index, uint64_t id)
{
	size_t low = 0, high = index->n;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (index->entries[middle].id <= id)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

int id_index_add(struct id_index *index, uint64_t id, void *item)
{
	size_t at = id_index_after(index, id);

	if (index->n == index->n_max) {
		size_t n_max = index->n_max ? 2 * index->n_max : 64;
		struct id_entry *more = reallocarray(index->entries, n_max, sizeof(*more));

		if (!more)
			return -ENOMEM;
		index->entries = more;
		index->n_max = n_max;
	}
	memmove(index->entries + at + 1, index->entries + at,
		(index->n - at) * sizeof(*index->entries));
	index->entries[at] = (struct id_entry){.id = id, .item = item};
	index->n++;
	return 0;
}

void id_index_remove(struct id_index *index, uint64_t id)
{
	size_t end = id_index_after(index, id);

	if (end == 0 || index->entries[end - 1].id != id)
		return;
	memmove(index->entries + end - 1, index->entries + end,
		(index->n - end) * sizeof(*index->entries));
	index->n--;
}

void id_index_deinit(struct id_index *index)
{
	free(index->entries);
	*index = (struct id_index){0};
}

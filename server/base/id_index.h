/*
 * Indexes by id
 *
 * Things by ascending ids, so that a list can continue behind any id. New ids are mostly the highest.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct id_entry {
	uint64_t id;
	void *item;
};

struct id_index {
	struct id_entry *entries; /* by id; n of them, with room for n_max */
	size_t n, n_max;
};

/* -ENOMEM. No entry may have the id. */
int id_index_add(struct id_index *index, uint64_t id, void *item);
/* Does nothing without such an entry. */
void id_index_remove(struct id_index *index, uint64_t id);
/* Position of the first entry with an id above `id`; n: there is none. */
size_t id_index_after(const struct id_index *index, uint64_t id);
void id_index_deinit(struct id_index *index);

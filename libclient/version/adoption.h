/*
 * Adoptions
 *
 * A writer whose layout has the tensors of its buffer's newest version in another order writes in
 * the order of that version: its readers go on at the same addresses. What the caller's own layout
 * says of ties stays true for the caller: names that it ties show the same memory, also where the
 * version has each of them on its own.
 */
#pragma once

#include "ipc/layout.h"

struct adoption {
	void *image; /* of the layout that the caller gave, a mapping; NULL: nothing was adopted */
	uint64_t image_size;
	struct layout given;
	/* For each untied tensor of `given` that others are tied to: one of the version's, or LAYOUT_NONE. */
	uint32_t *homes;
	/* For each tensor of the version: that whose memory the caller gets, or LAYOUT_NONE; NULL: none. */
	uint32_t *tied;
};

/*
 * Works out homes and ties of a->given, whose tensors are those of `newest`. -ENOMEM. What was
 * there before goes.
 */
int adoption_tie(struct adoption *a, const struct layout *newest);
void adoption_deinit(struct adoption *a);

/*
 * The tensor of `newest` whose bytes a name has that only the given layout knows, as a tie;
 * `ret_alias` is what it says of the name. -ENOENT.
 */
int adoption_find(const struct adoption *a, const char *name, size_t name_size, uint32_t *ret,
		  const struct layout_tensor **ret_alias);

/* The tensor of the version whose memory the caller has for tensor `index` of it. */
uint32_t adoption_home(const struct adoption *a, uint32_t index);

/*
 * Adoptions
 *
 * If a writer's layout has the tensors of its buffer's newest version in another order, it writes in the order of that
 * version, so that readers keep their addresses. The ties of the caller's own layout stay valid for the caller: names
 * that it ties share memory, even if the version has separate memory for each of them.
 */
#pragma once

#include "ipc/layout.h"

struct adoption {
	void *image; /* mapped image of the caller's layout; NULL: nothing was adopted */
	uint64_t image_size;
	struct layout given;
	/* One entry for each untied tensor of `given` that others are tied to: a tensor of the version, or LAYOUT_NONE. */
	uint32_t *homes;
	/*
	 * One entry for each tensor of the version: the tensor with the memory that the caller sees, or LAYOUT_NONE;
	 * NULL: none.
	 */
	uint32_t *tied;
};

/*
 * Computes homes and ties of a->given, which has the same tensors as `newest`. Replaces the previous ones. -ENOMEM.
 */
int adoption_tie(struct adoption *a, const struct layout *newest);
void adoption_deinit(struct adoption *a);

/*
 * The tensor of `newest` with the bytes of a tied name that only the given layout has; `ret_alias` is that name's
 * entry. -ENOENT.
 */
int adoption_find(const struct adoption *a, const char *name, size_t name_size, uint32_t *ret,
		  const struct layout_tensor **ret_alias);

/* The tensor of the version with the memory that the caller sees for tensor `index`. */
uint32_t adoption_home(const struct adoption *a, uint32_t index);

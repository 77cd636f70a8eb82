/*
 * Differences
 *
 * Two layouts belong to one model if they have the same set of (name, type, shape), in any order and with any
 * offsets, roles, units and ties. A name in only one of them is no difference if it is tied to a name in both.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "ipc/layout.h"

#define DIFFERENCE_SHOWN 5 /* tensors of each kind that a text names at most */

struct difference_list {
	uint32_t n; /* number of all of them */
	uint32_t shown[DIFFERENCE_SHOWN]; /* indices of the first ones, in the layout that has them */
};

struct difference {
	/* In both, with another type or shape; indices are the first layout's. */
	struct difference_list other;
	struct difference_list here; /* only in the first layout */
	struct difference_list there; /* only in the second */
};

/* 0: the same model; 1: what differs is in `ret`; -ENOMEM. Linear in the number of tensors. */
int difference_find(const struct layout *here, const struct layout *there, struct difference *ret);

/*
 * Writes "other type or shape: 'w' is F32 [4, 4], was BF16 [4, 4]; only in the new layout: 'a', 'b'
 * and 3 more; only in version 7: 'c'" into at most `size` bytes, which cut names and never a
 * character.
 */
void difference_describe(const struct difference *d, const struct layout *here,
			 const struct layout *there, const char *name_here, const char *name_there,
			 char *ret, size_t size);

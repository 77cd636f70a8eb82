/*
 * Packing
 *
 * The order of tensors in a file, which has no room between them: first those whose size is a multiple of 256 bytes,
 * which keep the alignment of the flat form, then the others by falling element size, which keeps each of them
 * aligned to its elements. Ties stand behind all others.
 */
#pragma once

#include "ipc/layout.h"
#include "weightd.h"

/*
 * Makes the packed layout of the tensors of `given`, which has at least one, with alignment 1. Tensors of one group
 * keep their order. The caller frees the result. -ENOMEM.
 */
int packing_make(const struct layout *given, struct weightd_layout **ret);

/* That order itself: fills `ret_order` with the indices of the tensors that are not tied. Returns their number. */
uint32_t packing_order(const struct layout *given, uint32_t *ret_order);

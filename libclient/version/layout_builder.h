/*
 * Layouts of files
 *
 * What weightd_layout_new() does not offer, as no caller of the library lays out tensors like this.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "weightd.h"

/* Like weightd_layout_new(), with any alignment from LAYOUT_ALIGNMENT_MIN on; 0 is not one. */
int layout_builder_new(uint64_t alignment, struct weightd_layout **ret);

/* A copy at another alignment: as if the same tensors were added to a layout that layout_builder_new() made. */
int layout_builder_realign(const struct weightd_layout *from, uint64_t alignment,
			   struct weightd_layout **ret);

/* Lets the data end with the last tensor, instead of at a multiple of the alignment. */
/*
 * Makes room for tensors to come, with all their dimensions and `strings_size` bytes of names with a NUL each: arrays that
 * grow as they are filled are copied again and again.
 */
int layout_builder_reserve(struct weightd_layout *l, size_t n_tensors, size_t n_dims,
			   size_t strings_size);

void layout_builder_end_tight(struct weightd_layout *l);

/* True for a layout of weightd_layout_new(0): the library may choose another order and other offsets. */
bool layout_builder_is_loose(const struct weightd_layout *l);

/*
 * Differences between the elements of two tensors
 */
#pragma once

#include <stdint.h>

/* Bytes compared at once end with an element of any type of safetensors if they are a multiple of this. */
#define ELEMENTS_CHUNK (3u << 20)

struct elements {
	uint64_t n_different; /* elements with different bits; blocks, for a block type */
	uint64_t n_unmeasured; /* part of it without a finite difference: NaN, infinities, blocks */
	double max_abs; /* the largest finite difference; of C64, of a real or imaginary part */
};

/* Adds the differences of `n_bytes`, which are whole elements of type `dtype`. */
void elements_compare(struct elements *e, unsigned dtype, const void *a, const void *b,
		      uint64_t n_bytes);

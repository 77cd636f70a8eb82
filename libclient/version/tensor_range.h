/*
 * Ranges of tensors: those with bytes between two offsets of a version
 */
#pragma once

#include "ipc/base/quote.h"
#include "ipc/layout.h"

struct tensor_range {
	uint32_t first, last; /* indexes in the layout; tied names are not among them */
	uint32_t n; /* 0: there are only bytes between tensors */
};

/*
 * Finds those with bytes in [begin, end). `*next`, 0 at first, keeps the place for a range behind this one, so that all
 * ranges of a version together take one pass over its layout.
 */
void tensor_range_find(const struct layout *l, uint64_t begin, uint64_t end, uint32_t *next,
		       struct tensor_range *ret);

#define TENSOR_RANGE_TEXT_MAX (QUOTE_MAX + 40)

/* "tensor 'a'", "tensor 'a' or the 2 behind it", "between tensors". Returns `ret`. */
const char *tensor_range_text(const struct layout *l, const struct tensor_range *range,
			      char ret[TENSOR_RANGE_TEXT_MAX]);

/*
 * Growing arrays
 */
#pragma once

#include <stddef.h>
#include <stdlib.h>

/* Makes room for one more item behind `n` of them; `max` is how many fit. False: out of memory. */
#define array_reserve(array, n, max)                                                               \
	({                                                                                         \
		void *array_p = array_grow((array), (n), &(max), sizeof(*(array)));                \
		if (array_p)                                                                       \
			(array) = array_p;                                                         \
		array_p != NULL;                                                                   \
	})

static inline void *array_grow(void *array, size_t n, size_t *max, size_t item_size)
{
	size_t larger = *max ? 2 * *max : 64;
	void *p;

	if (n < *max)
		return array;
	p = reallocarray(array, larger, item_size);
	if (p)
		*max = larger;
	return p;
}

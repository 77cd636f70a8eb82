/*
 * Eight characters at a time
 *
 * Strings of checkpoints are names of ASCII with hardly ever an escape: a word of 64 bits tells of eight characters at once
 * whether they are such.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define EIGHT_ONES (UINT64_MAX / 255) /* 1 in each byte */
#define EIGHT_TOP_BITS (EIGHT_ONES << 7)

/* The top bit of each byte that is 0, and perhaps of some above the first of these. */
static inline uint64_t eight_zeros(uint64_t word)
{
	return (word - EIGHT_ONES) & ~word & EIGHT_TOP_BITS;
}

/* True if all eight are ASCII that stands for itself in a string of JSON. A byte below ' ' has none of the upper bits. */
static inline bool eight_are_plain(const char *p)
{
	uint64_t word;

	memcpy(&word, p, sizeof(word));
	return !((eight_zeros(word ^ EIGHT_ONES * '"') | eight_zeros(word ^ EIGHT_ONES * '\\') |
		  eight_zeros(word & EIGHT_ONES * 0xe0) | word) &
		 EIGHT_TOP_BITS);
}

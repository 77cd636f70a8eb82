/*
 * Version ids
 *
 * The order of versions of a buffer: by term, then by number. 0, 0 is before all of them.
 */
#pragma once

#include <stdint.h>

#define VERSION_ID_MAX ((uint64_t)1 << 53) /* a term's, and a number's */

struct version_id {
	uint64_t term;
	uint64_t number;
};

static inline int version_id_compare(struct version_id a, struct version_id b)
{
	if (a.term != b.term)
		return a.term < b.term ? -1 : 1;
	return a.number < b.number ? -1 : a.number > b.number;
}

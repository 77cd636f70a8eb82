/*
 * Programs: what the kernel counts of those that are loaded here
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define PROGRAMS_MAX 32

struct tracer;

struct program {
	const char *name;
	/* Only what ran while the kernel counted; it does not say when that was. */
	uint64_t runs;
	uint64_t ns; /* from their begin to their end: getting there is not in it */
};

/* How many there are: the meter that needs no rights has none. */
size_t programs_read(const struct tracer *t, struct program ret[PROGRAMS_MAX]);

/* Forms of tests that are too long for each run: make soak sets WEIGHTD_LONG. `longer` lists the programs that ask. */
#ifndef TESTS_UNIT_LONG_FORM_H
#define TESTS_UNIT_LONG_FORM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

static inline bool is_long_form(void)
{
	return getenv("WEIGHTD_LONG");
}

/*
 * Some of the pairs of two lists: about one of `every`, in which each `every` neighbours of a list are. All: in the long form.
 * Under ThreadSanitizer half as many: it looks for races, and the values are those of the other builds.
 */
static inline bool is_some_pair(size_t i, size_t k, size_t every)
{
#ifdef __SANITIZE_THREAD__
	every *= 2;
#endif
	return (i + k) % every == 0 || is_long_form();
}

#endif

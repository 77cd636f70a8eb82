/*
 * Patterns
 *
 * Patterns of names, as fnmatch() without flags has them in the C locale: `*` matches any characters, `?` one byte,
 * [a-z] one of a set, [!a-z] one outside of it. A `[` that no `]` ends is itself. A backslash has no meaning.
 */
#pragma once

#include <stdbool.h>

/* Takes at most as many steps as both lengths multiplied: both may come from strangers. */
bool pattern_matches(const char *pattern, const char *name);

/*
 * How many bytes of the pattern must be put in, taken out or changed to match `name`; at least `limit` if they are that
 * many, and for patterns and names of more than PATTERN_DISTANCE_MAX bytes.
 */
#define PATTERN_DISTANCE_MAX 256
unsigned pattern_distance(const char *pattern, const char *name, unsigned limit);

/*
 * Suggestions
 *
 * For who mistyped a name: the one that is meant, likely.
 */
#pragma once

/* The nearest of `n` names, or NULL where none is near. */
const char *suggestion_find(const char *name, const char *const *names, unsigned n);

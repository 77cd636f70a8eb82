/*
 * Suggestions
 *
 * Finds the nearest name to a mistyped one.
 */
#pragma once

#include <stddef.h>

/* The nearest of `n` names, or NULL where none is near or equal. A difference of case alone is near. */
const char *suggestion_find(const char *name, size_t size, const char *const *names, unsigned n);

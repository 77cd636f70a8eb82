/*
 * Pinned host memory
 *
 * Memory like any other here, but freed only by its own function. Asynchronous copies to and from it do not block; see
 * copy.c.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Returns true if all of a range is pinned. */
bool host_is_pinned(const void *p, size_t size);

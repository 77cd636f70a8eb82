/*
 * The width of text on a terminal, in columns
 */
#pragma once

#include <stddef.h>

size_t width_of(const char *s, size_t size);

/* Bytes of `s` that fit into that many columns. */
size_t width_fitting(const char *s, size_t size, size_t width);

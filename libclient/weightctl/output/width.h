/*
 * The width of text on a terminal, in columns
 */
#pragma once

#include <stddef.h>

size_t width_of(const char *s, size_t size);

/* Columns of standard output: of the terminal, or of the variable COLUMNS where that has none; else 80. */
size_t width_of_terminal(void);

/* Bytes of `s` that fit into that many columns. */
size_t width_fitting(const char *s, size_t size, size_t width);

/*
 * Text that is redrawn in place on a terminal
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct redraw {
	size_t n_lines; /* drawn, above the cursor */
	unsigned width; /* width of the terminal at that time */
};

/* True if standard output is a terminal that can do that. */
bool redraw_is_possible(void);
/*
 * Draws the lines of `text` in place of those of the last call: cut to the width of the terminal, and to its height,
 * with the number of lines left out in the last one. Clears the whole terminal if its width has changed, which may
 * have wrapped the old lines. 0, or EXIT_FAILED after printing why.
 */
int redraw_text(struct redraw *s, const char *text);

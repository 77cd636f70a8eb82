/*
 * Comparisons
 */
#pragma once

#include "weightd.h"

/* weightd_diff() with the part of the second side, files, that a load with options `o` would take. */
int diff_with_load(struct weightd *w, const struct weightd_diff_side *first,
		   const struct weightd_diff_side *second, const struct weightd_load_options *o);

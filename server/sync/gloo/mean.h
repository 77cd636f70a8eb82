/*
 * The mean
 *
 * Elements of floating point, summed in fp32 in the order of the calls, divided in fp32, and
 * rounded once, to nearest, ties to even. Elements need not be aligned.
 */
#pragma once

#include <stddef.h>

#include "server/sync/engine/mean_type.h"

/* Adds `n` elements to sums, which begin at -0.0: then the mean of one element is itself. */
void mean_add(enum mean_type type, float *sums, const void *from, size_t n);
/* Divides the sums by `n_nodes`, and stores them in the type. */
void mean_store(enum mean_type type, const float *sums, size_t n, unsigned n_nodes, void *to);

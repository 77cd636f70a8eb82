/*
 * The mean
 *
 * Elements of floating point, summed in fp32 in the order of the calls, divided in fp32, and
 * rounded once, to nearest, ties to even. Elements need not be aligned.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum mean_type {
	MEAN_F32,
	MEAN_BF16,
	MEAN_F16,
	MEAN_TYPES, /* none of these */
};

/* Finds a type by its name in safetensors; MEAN_TYPES: it has no mean. */
enum mean_type mean_type_find(const char *name);
size_t mean_size(enum mean_type type);

/* Adds `n` elements to sums, which begin at -0.0: then the mean of one element is itself. */
void mean_add(enum mean_type type, float *sums, const void *from, size_t n);
/* Divides the sums by `n_nodes`, and stores them in the type. */
void mean_store(enum mean_type type, const float *sums, size_t n, unsigned n_nodes, void *to);

/*
 * The mean
 *
 * Of floating-point elements, summed up in fp32 in the order of the calls, divided in fp32, and rounded once, to
 * nearest, ties to even. Elements need not be aligned.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum mean_type {
	MEAN_F32,
	MEAN_BF16,
	MEAN_F16,
	MEAN_TYPES, /* none of them */
};

/* By the name that safetensors has for it; MEAN_TYPES: there is no mean of that. */
enum mean_type mean_type_find(const char *name);
size_t mean_size(enum mean_type type);

/* Adds `n` elements to sums, which begin at -0.0: then the mean of one is itself. */
void mean_add(enum mean_type type, float *sums, const void *from, size_t n);
/* What the sums of `n_nodes` are on average. */
void mean_store(enum mean_type type, const float *sums, size_t n, unsigned n_nodes, void *to);

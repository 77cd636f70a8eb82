/*
 * Types that have a mean
 *
 * The types of tensors that engines average. All others must be equal on all nodes.
 */
#pragma once

#include <stddef.h>

enum mean_type {
	MEAN_F32,
	MEAN_BF16,
	MEAN_F16,
	MEAN_TYPES, /* none of these */
};

/* Finds a type by its name in safetensors; MEAN_TYPES: it has no mean. */
enum mean_type mean_type_find(const char *name);
const char *mean_type_name(enum mean_type type);
size_t mean_size(enum mean_type type);

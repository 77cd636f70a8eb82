/*
 * Kernels in C
 *
 * The stand-in for libcuda runs no code of a GPU. A kernel that a program launches has a twin here, found by
 * its name, that does the same to the same bytes: a row in the table in module.c, and a function. An image is
 * taken for good where it names the kernel.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/fake/allocation.h"
#include "tests/fake/call.h"

#define KERNEL_N_PARAMETERS_MAX 12
#define KERNEL_N_HOLDS_MAX 12

struct launch {
	int gpu;
	unsigned grid[3], block[3], shared_bytes;
	const void *parameters[KERNEL_N_PARAMETERS_MAX]; /* to copies of the values */
	struct allocation *holds[KERNEL_N_HOLDS_MAX]; /* held by kernel_bytes() */
	size_t n_holds;
};

/* The value of parameter i, kernel_parameter(l, 1, uint64_t). */
#define kernel_parameter(l, i, type) (*(const type *)(l)->parameters[i])

/*
 * The bytes at an address of the GPU, in one allocation, until the kernel ends. NULL: it may not touch them
 * all, in which case the twin returns CUDA_ERROR_ILLEGAL_ADDRESS.
 */
void *kernel_bytes(struct launch *l, cu_ptr p, uint64_t size, bool writes);

struct kernel {
	const char *name;
	cu_result (*run)(struct launch *l); /* on a stream's thread */
	size_t n_parameters;
	size_t sizes[KERNEL_N_PARAMETERS_MAX]; /* sizes of the parameters, in order */
};

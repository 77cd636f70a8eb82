/*
 * Images
 *
 * What a program gives the driver to load: PTX, which the driver compiles, or code for certain GPUs, by itself (ELF) or
 * as one of several in a fat binary. Code runs on GPUs of its own major compute capability, of its minor one or later.
 *
 * FAKE_CUDA_NO_JIT    this driver cannot compile PTX (libnvidia-ptxjitcompiler is not installed)
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "tests/fake/call.h"

struct image {
	char *bytes; /* chosen by the driver; NULL: plain ELF, which is not parsed */
	size_t size;
};

/* Reads an image for a GPU. Copies what it needs. */
cu_result image_init(struct image *i, const void *data, int gpu);
void image_deinit(struct image *i);

/* Returns true if a kernel of this name can be in it. */
bool image_has_name(const struct image *i, const char *name);

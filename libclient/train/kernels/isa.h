/*
 * Instruction sets
 *
 * The tables of kernels, one for each instruction set that this library is built for.
 */
#pragma once

#define INLINE static inline __attribute__((always_inline))

#include "libclient/train/kernels/kernel.h"

extern const struct kernels kernels_portable, kernels_v2, kernels_v3, kernels_v4;

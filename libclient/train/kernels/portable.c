/*
 * Kernels for any machine
 *
 * No instruction that the compiler was not asked for. On x86-64 it is the last resort, before x86-64-v2, and slow: libm
 * has fmaf().
 */
#include <math.h>

#define VEC_BYTES 16
#define KERNELS kernels_portable
#define KERNELS_ISA "portable"

typedef float vec __attribute__((vector_size(VEC_BYTES)));

static inline vec vec_fma(vec a, vec b, vec c)
{
	return (vec){fmaf(a[0], b[0], c[0]), fmaf(a[1], b[1], c[1]), fmaf(a[2], b[2], c[2]),
		     fmaf(a[3], b[3], c[3])};
}

static inline vec vec_sqrt(vec x)
{
	return (vec){sqrtf(x[0]), sqrtf(x[1]), sqrtf(x[2]), sqrtf(x[3])};
}

static inline void vec_stream(float *to, vec x)
{
	__builtin_memcpy(to, &x, sizeof(x));
}

#include "libclient/train/kernels/half_soft.inc"

#include "libclient/train/kernels/body.inc"

/*
 * Kernels for any machine
 *
 * No instruction that the compiler was not asked for. On x86-64 it is the last resort, before x86-64-v2, and slow: libm
 * has fmaf().
 */
#include <math.h>

#include "libclient/train/kernels/isa.h"

#define VEC_BYTES 16
#define KERNELS kernels_portable
#define KERNELS_ISA "portable"

typedef float vec __attribute__((vector_size(VEC_BYTES)));

INLINE vec vec_fma(vec a, vec b, vec c)
{
	return (vec){fmaf(a[0], b[0], c[0]), fmaf(a[1], b[1], c[1]), fmaf(a[2], b[2], c[2]),
		     fmaf(a[3], b[3], c[3])};
}

INLINE vec vec_sqrt(vec x)
{
	return (vec){sqrtf(x[0]), sqrtf(x[1]), sqrtf(x[2]), sqrtf(x[3])};
}

INLINE void vec_stream(float *to, vec x)
{
	__builtin_memcpy(to, &x, sizeof(x));
}

typedef uint32_t u32s __attribute__((vector_size(VEC_BYTES)));
typedef uint16_t u16s __attribute__((vector_size(VEC_BYTES / 2)));
typedef u16s u16s_memory __attribute__((may_alias, aligned(2)));

INLINE vec vec_load_u16(const uint16_t *from)
{
	return (vec) __builtin_convertvector(*(const u16s_memory *)from, u32s);
}

INLINE void line_store_u16(uint16_t *to, const vec *words)
{
	for (size_t i = 0; i < 4; i++)
		*(u16s_memory *)(to + 4 * i) = __builtin_convertvector((u32s)words[i], u16s);
}

#include "libclient/train/kernels/half_soft.inc"

#include "libclient/train/kernels/body.inc"

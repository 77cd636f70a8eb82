/*
 * Kernels for x86-64-v3 (AVX2, FMA, F16C)
 */
#ifdef __x86_64__

#include <immintrin.h>
#include <stdint.h>

#include "libclient/train/kernels/isa.h"

#define VEC_BYTES 32
#define KERNELS kernels_v3
#define KERNELS_ISA "x86-64-v3"

typedef float vec __attribute__((vector_size(VEC_BYTES)));

INLINE vec vec_fma(vec a, vec b, vec c)
{
	return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}

INLINE vec vec_sqrt(vec x)
{
	return (vec)_mm256_sqrt_ps((__m256)x);
}

INLINE void vec_stream(float *to, vec x)
{
	_mm256_stream_ps(to, (__m256)x);
}

INLINE vec vec_load_u16(const uint16_t *from)
{
	return (vec)_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)from));
}

INLINE void line_store_u16(uint16_t *to, const vec *words)
{
	/* Packed within each half of 128 bits. */
	__m256i packed = _mm256_packus_epi32((__m256i)words[0], (__m256i)words[1]);

	_mm256_storeu_si256((void *)to, _mm256_permute4x64_epi64(packed, 0xd8));
}

INLINE vec vec_from_f16(const uint16_t *from)
{
	return (vec)_mm256_cvtph_ps(_mm_loadu_si128((const void *)from));
}

INLINE void line_to_f16(uint16_t *to, const vec *from)
{
	for (size_t i = 0; i < 2; i++)
		_mm_storeu_si128((void *)(to + 8 * i),
				 _mm256_cvtps_ph((__m256)from[i], _MM_FROUND_TO_NEAREST_INT));
}

#include "libclient/train/kernels/body.inc"

#endif

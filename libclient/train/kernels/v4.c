/*
 * Kernels for x86-64-v4 (AVX-512)
 */
#ifdef __x86_64__

#include <immintrin.h>
#include <stdint.h>

#include "libclient/train/kernels/isa.h"

#define VEC_BYTES 64
#define KERNELS kernels_v4
#define KERNELS_ISA "x86-64-v4"

typedef float vec __attribute__((vector_size(VEC_BYTES)));

INLINE vec vec_fma(vec a, vec b, vec c)
{
	return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}

INLINE vec vec_sqrt(vec x)
{
	return (vec)_mm512_sqrt_ps((__m512)x);
}

INLINE void vec_stream(float *to, vec x)
{
	_mm512_stream_ps(to, (__m512)x);
}

INLINE vec vec_load_u16(const uint16_t *from)
{
	return (vec)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)from));
}

INLINE void line_store_u16(uint16_t *to, const vec *words)
{
	_mm256_storeu_si256((void *)to, _mm512_cvtepi32_epi16((__m512i)*words));
}

INLINE vec vec_from_f16(const uint16_t *from)
{
	return (vec)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)from));
}

INLINE void line_to_f16(uint16_t *to, const vec *from)
{
	_mm256_storeu_si256((void *)to, _mm512_cvtps_ph((__m512)*from, _MM_FROUND_TO_NEAREST_INT));
}

#include "libclient/train/kernels/body.inc"

#endif

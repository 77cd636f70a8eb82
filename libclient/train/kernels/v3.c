/*
 * Kernels for x86-64-v3 (AVX2, FMA, F16C)
 */
#ifdef __x86_64__

#include <immintrin.h>
#include <stdint.h>

#define VEC_BYTES 32
#define KERNELS kernels_v3
#define KERNELS_ISA "x86-64-v3"

typedef float vec __attribute__((vector_size(VEC_BYTES)));

static inline vec vec_fma(vec a, vec b, vec c)
{
	return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}

static inline vec vec_sqrt(vec x)
{
	return (vec)_mm256_sqrt_ps((__m256)x);
}

static inline void vec_stream(float *to, vec x)
{
	_mm256_stream_ps(to, (__m256)x);
}

static inline vec vec_from_f16(const uint16_t *from)
{
	return (vec)_mm256_cvtph_ps(_mm_loadu_si128((const void *)from));
}

static inline void vec_to_f16(uint16_t *to, vec x)
{
	_mm_storeu_si128((void *)to, _mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT));
}

#include "libclient/train/kernels/body.inc"

#endif

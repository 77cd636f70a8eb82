/*
 * Kernels for x86-64-v2 (SSE4.2)
 *
 * It has no fused multiply-add. Here it is one in double: the product is exact, the sum is rounded to odd, that is to the
 * neighbour with the odd mantissa unless it is exact, and such a sum rounds to float as the exact one would, since it has
 * more than two bits to spare. Infinities and NaN pass through. AdamW takes 3.5 to 4 times as long as with AVX2, where
 * memory is its bound.
 */
#ifdef __x86_64__

#include <smmintrin.h>

#include "libclient/train/kernels/isa.h"

#define VEC_BYTES 16
#define KERNELS kernels_v2
#define KERNELS_ISA "x86-64-v2"

typedef float vec __attribute__((vector_size(VEC_BYTES)));
typedef double double2 __attribute__((vector_size(16)));
typedef int64_t long2 __attribute__((vector_size(16)));

INLINE __m128 half_fma(__m128 a, __m128 b, __m128 c)
{
	double2 product = (double2)_mm_cvtps_pd(a) * (double2)_mm_cvtps_pd(b);
	double2 other = (double2)_mm_cvtps_pd(c);
	double2 sum = product + other;
	double2 rest = sum - product;
	double2 error = (product - (sum - rest)) + (other - rest);
	long2 bits = (long2)sum;
	long2 is_even = (bits & 1) - 1;
	long2 is_inexact = (error < 0) | (error > 0);
	/* The error's side: away from 0 where the signs are equal. */
	long2 step = (((bits ^ (long2)error) < 0) & -2) + 1;

	return _mm_cvtpd_ps((__m128d)(bits + (step & is_even & is_inexact)));
}

INLINE vec vec_fma(vec a, vec b, vec c)
{
	__m128 low = half_fma((__m128)a, (__m128)b, (__m128)c);
	__m128 high = half_fma(_mm_movehl_ps((__m128)a, (__m128)a),
			       _mm_movehl_ps((__m128)b, (__m128)b),
			       _mm_movehl_ps((__m128)c, (__m128)c));

	return (vec)_mm_movelh_ps(low, high);
}

INLINE vec vec_sqrt(vec x)
{
	return (vec)_mm_sqrt_ps((__m128)x);
}

INLINE void vec_stream(float *to, vec x)
{
	_mm_stream_ps(to, (__m128)x);
}

INLINE vec vec_load_u16(const uint16_t *from)
{
	return (vec)_mm_cvtepu16_epi32(_mm_loadl_epi64((const void *)from));
}

INLINE void line_store_u16(uint16_t *to, const vec *words)
{
	for (size_t i = 0; i < 4; i += 2)
		_mm_storeu_si128((void *)(to + 4 * i),
				 _mm_packus_epi32((__m128i)words[i], (__m128i)words[i + 1]));
}

#include "libclient/train/kernels/half_soft.inc"

#include "libclient/train/kernels/body.inc"

#endif

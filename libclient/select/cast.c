/*
 * Each cast is a loop without branches over integers, which gcc turns into vectors. Values on the way are normal floats,
 * so that a caller's thread that flushes denormals gets the same bits.
 */
#include "libclient/select/cast.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "ipc/dtype.h"

#define INLINE static inline __attribute__((always_inline))

#define F32_INFINITY 0x7f800000u
#define F32_QUIET 0x400000u
#define F16_INFINITY 0x7c00u
#define F16_BIAS ((127u - 15) << 23) /* between the exponents, as a float has them */

INLINE float float_of(uint32_t bits)
{
	float x;

	memcpy(&x, &bits, sizeof(x));
	return x;
}

INLINE uint32_t bits_of(float x)
{
	uint32_t bits;

	memcpy(&bits, &x, sizeof(bits));
	return bits;
}

INLINE uint64_t bits_of_double(double x)
{
	uint64_t bits;

	memcpy(&bits, &x, sizeof(bits));
	return bits;
}

/* --- To the bits of a float --------------------------------------------------------------------- */

INLINE uint32_t from_f32(uint32_t x)
{
	return x;
}

INLINE uint32_t from_bf16(uint16_t x)
{
	return (uint32_t)x << 16;
}

INLINE uint32_t from_f16(uint16_t x)
{
	const uint32_t rest = x & 0x7fffu, sign = (x & 0x8000u) << 16;
	const uint32_t small = bits_of((float)(int32_t)rest * 0x1p-24f);
	uint32_t wide = (rest << 13) + F16_BIAS;

	wide = rest < 0x400 ? small : wide;
	wide += rest >= F16_INFINITY ? F16_BIAS : 0;
	wide |= rest > F16_INFINITY ? F32_QUIET : 0;
	return wide | sign;
}

/* The last digit of 2^-97 as a double is that of a denormal float: the addition rounds. */
INLINE uint32_t from_f64(uint64_t x)
{
	const uint64_t positive = x & ~(1ull << 63);
	const uint32_t sign = (uint32_t)(x >> 32) & 0x80000000u;
	uint32_t small, normal;
	double d, magnitude;

	memcpy(&d, &x, sizeof(d));
	normal = bits_of((float)d);
	memcpy(&magnitude, &positive, sizeof(magnitude));
	small = (uint32_t)(bits_of_double(magnitude + 0x1p-97) - bits_of_double(0x1p-97));
	return magnitude < 0x1p-126 ? small | sign : normal;
}

/* --- From the bits of a float ------------------------------------------------------------------- */

INLINE uint32_t to_f32(uint32_t x)
{
	return x;
}

INLINE uint16_t to_bf16(uint32_t x)
{
	const uint32_t rounded = x + 0x7fff + (x >> 16 & 1);

	return (uint16_t)(((x & 0x7fffffff) > F32_INFINITY ? x | F32_QUIET : rounded) >> 16);
}

/* The last digit of 0.5 as a float is that of a denormal F16: the addition rounds. */
INLINE uint16_t to_f16(uint32_t x)
{
	const uint32_t rest = x & 0x7fffffff;
	const uint32_t normal = (rest - F16_BIAS + 0xfff + (rest >> 13 & 1)) >> 13;
	const uint32_t small = bits_of(float_of(rest) + 0.5f) - bits_of(0.5f);
	uint32_t half = rest < 0x38800000 ? small : normal;

	half = rest >= 0x47800000 ? F16_INFINITY : half;
	half |= rest > F32_INFINITY ? 0x200 | (rest >> 13 & 0x3ff) : 0;
	return (uint16_t)(half | (x >> 16 & 0x8000));
}

/* --- Loops -------------------------------------------------------------------------------------- */

/* Elements may lie at any address: a tensor in a file does. */
#define LOOP(widen, from_type, narrow, to_type)                                                    \
	for (size_t i = 0; i < n; i++) {                                                           \
		from_type a;                                                                       \
		to_type b;                                                                         \
                                                                                                   \
		memcpy(&a, (const char *)from + i * sizeof(a), sizeof(a));                         \
		b = narrow(widen(a));                                                              \
		memcpy((char *)to + i * sizeof(b), &b, sizeof(b));                                 \
	}

#define LOOPS(widen, from_type)                                                                    \
	switch (to_dtype) {                                                                        \
	case DTYPE_BF16:                                                                           \
		LOOP(widen, from_type, to_bf16, uint16_t);                                         \
		break;                                                                             \
	case DTYPE_F16:                                                                            \
		LOOP(widen, from_type, to_f16, uint16_t);                                          \
		break;                                                                             \
	default:                                                                                   \
		LOOP(widen, from_type, to_f32, uint32_t);                                          \
	}                                                                                          \
	break

INLINE void cast_loops(void *restrict to, unsigned to_dtype, const void *restrict from,
		       unsigned from_dtype, size_t n)
{
	switch (from_dtype) {
	case DTYPE_BF16:
		LOOPS(from_bf16, uint16_t);
	case DTYPE_F16:
		LOOPS(from_f16, uint16_t);
	case DTYPE_F64:
		LOOPS(from_f64, uint64_t);
	default:
		LOOPS(from_f32, uint32_t);
	}
}

void cast_elements_portable(void *to, unsigned to_dtype, const void *from, unsigned from_dtype,
			    size_t n)
{
	assert(cast_is_to(to_dtype) && cast_is_from(from_dtype));
	cast_loops(to, to_dtype, from, from_dtype, n);
}

#ifdef __x86_64__

__attribute__((target("avx2"))) static void cast_loops_avx2(void *to, unsigned to_dtype,
							    const void *from, unsigned from_dtype,
							    size_t n)
{
	cast_loops(to, to_dtype, from, from_dtype, n);
}

#endif

void cast_elements(void *to, unsigned to_dtype, const void *from, unsigned from_dtype, size_t n)
{
#ifdef __x86_64__
	if (__builtin_cpu_supports("avx2")) {
		assert(cast_is_to(to_dtype) && cast_is_from(from_dtype));
		cast_loops_avx2(to, to_dtype, from, from_dtype, n);
		return;
	}
#endif
	cast_elements_portable(to, to_dtype, from, from_dtype, n);
}

bool cast_is_to(unsigned dtype)
{
	return dtype == DTYPE_F32 || dtype == DTYPE_F16 || dtype == DTYPE_BF16;
}

bool cast_is_from(unsigned dtype)
{
	return dtype == DTYPE_F64 || cast_is_to(dtype);
}

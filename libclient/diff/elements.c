/*
 * Equal bytes are skipped at the speed of memory. Elements that differ become doubles, which hold the values of all
 * types but the largest integers exactly.
 */
#include "libclient/diff/elements.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "ipc/base/num.h"
#include "ipc/dtype.h"

#define STRIDE 4096 /* compared at once, a multiple of the element sizes of whole bytes */

/* --- Values ----------------------------------------------------------------------------------- */

enum specials {
	SPECIAL_NONE, /* every pattern is a number */
	SPECIAL_IEEE, /* the largest exponent is infinity and NaN */
	SPECIAL_ALL_ONES, /* NaN, and no infinity */
	SPECIAL_NEGATIVE_ZERO, /* NaN in its place, and no infinity */
};

/* A sign, then the exponent, then the fraction. */
struct minifloat {
	unsigned exponent_bits, fraction_bits;
	int bias;
	enum specials specials;
};

static const struct minifloat minifloats[DTYPE_END] = {
	[DTYPE_F4] = {2, 1, 1, SPECIAL_NONE},
	[DTYPE_F6_E2M3] = {2, 3, 1, SPECIAL_NONE},
	[DTYPE_F6_E3M2] = {3, 2, 3, SPECIAL_NONE},
	[DTYPE_F8_E5M2] = {5, 2, 15, SPECIAL_IEEE},
	[DTYPE_F8_E4M3] = {4, 3, 7, SPECIAL_ALL_ONES},
	[DTYPE_F8_E4M3FNUZ] = {4, 3, 8, SPECIAL_NEGATIVE_ZERO},
	[DTYPE_F8_E5M2FNUZ] = {5, 2, 16, SPECIAL_NEGATIVE_ZERO},
	[DTYPE_F16] = {5, 10, 15, SPECIAL_IEEE},
	[DTYPE_BF16] = {8, 7, 127, SPECIAL_IEEE},
};

/* 2^n, for the exponents of the types here. */
static double power_of_two(int n)
{
	uint64_t bits = (uint64_t)(1023 + n) << 52;
	double d;

	memcpy(&d, &bits, sizeof(d));
	return d;
}

static double minifloat_value(const struct minifloat *f, uint32_t bits)
{
	uint32_t fraction = bits & ((1u << f->fraction_bits) - 1);
	uint32_t exponent = bits >> f->fraction_bits & ((1u << f->exponent_bits) - 1);
	uint32_t sign = bits >> (f->exponent_bits + f->fraction_bits) & 1;
	bool is_top = exponent == (1u << f->exponent_bits) - 1;
	double scale = power_of_two(-(int)f->fraction_bits), value;

	if (f->specials == SPECIAL_IEEE && is_top)
		return fraction ? (double)NAN : sign ? -(double)INFINITY : (double)INFINITY;
	if (f->specials == SPECIAL_ALL_ONES && is_top && fraction == (1u << f->fraction_bits) - 1)
		return (double)NAN;
	if (f->specials == SPECIAL_NEGATIVE_ZERO && sign && !exponent && !fraction)
		return (double)NAN;
	if (exponent == 0)
		value = fraction * scale * power_of_two(1 - f->bias);
	else
		value = (1 + fraction * scale) * power_of_two((int)exponent - f->bias);
	return sign ? -value : value;
}

#define VALUE_OF(type)                                                                             \
	({                                                                                         \
		type value_of;                                                                     \
		memcpy(&value_of, p, sizeof(value_of));                                            \
		(double)value_of;                                                                  \
	})

static double value_at(unsigned dtype, const uint8_t *p)
{
	uint16_t half;

	switch (dtype) {
	case DTYPE_BOOL:
	case DTYPE_U8:
		return VALUE_OF(uint8_t);
	case DTYPE_I8:
		return VALUE_OF(int8_t);
	case DTYPE_I16:
		return VALUE_OF(int16_t);
	case DTYPE_U16:
		return VALUE_OF(uint16_t);
	case DTYPE_I32:
		return VALUE_OF(int32_t);
	case DTYPE_U32:
		return VALUE_OF(uint32_t);
	case DTYPE_I64:
		return VALUE_OF(int64_t);
	case DTYPE_U64:
		return VALUE_OF(uint64_t);
	case DTYPE_F32:
	case DTYPE_C64: /* one part of it */
		return VALUE_OF(float);
	case DTYPE_F64:
		return VALUE_OF(double);
	case DTYPE_F8_E8M0: /* an exponent alone */
		return *p == 0xff ? (double)NAN : power_of_two(*p - 127);
	case DTYPE_F16:
	case DTYPE_BF16:
		memcpy(&half, p, sizeof(half));
		return minifloat_value(&minifloats[dtype], half);
	default:
		return minifloat_value(&minifloats[dtype], *p);
	}
}

/* --- Elements --------------------------------------------------------------------------------- */

static void measure(struct elements *e, double a, double b)
{
	double d = a > b ? a - b : b - a;

	if (!isfinite(d))
		e->n_unmeasured++;
	else if (d > e->max_abs)
		e->max_abs = d;
}

/* Both parts count as one element. */
static void compare_complex(struct elements *e, const uint8_t *a, const uint8_t *b)
{
	struct elements parts = {.max_abs = e->max_abs};

	for (unsigned i = 0; i < 2; i++)
		if (memcmp(a + 4 * i, b + 4 * i, 4) != 0)
			measure(&parts, value_at(DTYPE_C64, a + 4 * i),
				value_at(DTYPE_C64, b + 4 * i));
	e->n_unmeasured += parts.n_unmeasured > 0;
	e->max_abs = parts.max_abs;
}

static void compare_whole(struct elements *e, unsigned dtype, uint32_t size, const uint8_t *a,
			  const uint8_t *b, uint64_t n_bytes)
{
	for (uint64_t i = 0; i < n_bytes; i += size) {
		if (!memcmp(a + i, b + i, size))
			continue;
		e->n_different++;
		if (dtype_is_block(dtype))
			e->n_unmeasured++;
		else if (dtype == DTYPE_C64)
			compare_complex(e, a + i, b + i);
		else
			measure(e, value_at(dtype, a + i), value_at(dtype, b + i));
	}
}

/* Bits [at, at + n), the first one is the lowest of its byte. */
static uint32_t bits_at(const uint8_t *p, uint64_t at, unsigned n)
{
	uint32_t bits = p[at / 8];

	if (at % 8 + n > 8)
		bits |= (uint32_t)p[at / 8 + 1] << 8;
	return bits >> (at % 8) & ((1u << n) - 1);
}

static void compare_packed(struct elements *e, unsigned dtype, unsigned n_bits, const uint8_t *a,
			   const uint8_t *b, uint64_t n_bytes)
{
	for (uint64_t at = 0; at + n_bits <= 8 * n_bytes; at += n_bits) {
		uint32_t x = bits_at(a, at, n_bits), y = bits_at(b, at, n_bits);

		if (x == y)
			continue;
		e->n_different++;
		measure(e, minifloat_value(&minifloats[dtype], x),
			minifloat_value(&minifloats[dtype], y));
	}
}

static void compare_stride(struct elements *e, unsigned dtype, const uint8_t *a, const uint8_t *b,
			   uint64_t n_bytes)
{
	unsigned n_bits = dtype_bits(dtype);
	uint32_t elements, size;

	if (n_bits && n_bits < 8)
		compare_packed(e, dtype, n_bits, a, b, n_bytes);
	else if (dtype_block(dtype, &elements, &size) == 0)
		compare_whole(e, dtype, size, a, b, n_bytes);
}

/* Bytes compared at once: whole elements. */
static uint64_t stride_of(unsigned dtype)
{
	uint32_t elements, size;

	return dtype_block(dtype, &elements, &size) == 0 ? (STRIDE + size - 1) / size * size
							 : STRIDE;
}

void elements_compare(struct elements *e, unsigned dtype, const void *a, const void *b,
		      uint64_t n_bytes)
{
	uint64_t stride = stride_of(dtype);
	const uint8_t *x = a, *y = b;

	for (uint64_t n; n_bytes > 0; x += n, y += n, n_bytes -= n) {
		n = n_bytes < stride ? n_bytes : stride;
		if (memcmp(x, y, n) != 0)
			compare_stride(e, dtype, x, y, n);
	}
}

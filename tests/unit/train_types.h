/*
 * BF16 and F16 by arithmetic on single numbers, as the reference of kernels
 *
 * Formulas of IEEE 754: powers of two and rint(), no shifts of digits. rint() rounds to nearest even.
 */
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "libclient/train/kernels/kernel.h"

static inline float float_of(uint32_t bits)
{
	float x;

	memcpy(&x, &bits, sizeof(x));
	return x;
}

static inline uint32_t bits_of(float x)
{
	uint32_t bits;

	memcpy(&bits, &x, sizeof(bits));
	return bits;
}

/* A format of 16 bits: a sign, an exponent, digits. */
struct format {
	int n_digits, exponent_max, bias;
};

static inline struct format format_of(enum kernel_type type)
{
	return type == KERNEL_BF16 ? (struct format){7, 255, 127} : (struct format){10, 31, 15};
}

static inline float reference_widen(uint16_t x, enum kernel_type type)
{
	struct format f = format_of(type);
	int exponent = (x & 0x7fff) >> f.n_digits, digits = x & ((1 << f.n_digits) - 1);
	float sign = x & 0x8000 ? -1 : 1;

	if (exponent == f.exponent_max && digits) {
		uint32_t quiet = type == KERNEL_F16 ? 0x400000 : 0;

		return float_of((uint32_t)(x & 0x8000) << 16 | 0x7f800000 | quiet |
				(uint32_t)digits << (23 - f.n_digits));
	}
	if (exponent == f.exponent_max)
		return sign * INFINITY;
	if (exponent == 0)
		return sign * ldexpf((float)digits, 1 - f.bias - f.n_digits);
	return sign * ldexpf((float)(digits + (1 << f.n_digits)), exponent - f.bias - f.n_digits);
}

static inline uint16_t reference_round(float x, enum kernel_type type)
{
	struct format f = format_of(type);
	uint16_t sign = signbit(x) ? 0x8000 : 0, infinity = (uint16_t)(f.exponent_max << f.n_digits);
	uint32_t digits = bits_of(x) & 0x7fffff;
	int exponent;
	double units;

	if (isnan(x))
		return (uint16_t)(sign | infinity | 1u << (f.n_digits - 1) |
				  digits >> (23 - f.n_digits));
	if (isinf(x))
		return sign | infinity;
	(void)frexp((double)x, &exponent); /* |x| is at least 2^(exponent - 1) */
	exponent = exponent + f.bias - 1 > 1 && x != 0 ? exponent + f.bias - 1 : 1;
	units = rint(ldexp(fabs((double)x), f.bias + f.n_digits - exponent));
	/* The implicit digit counts as one step of the exponent, and so does a carry. */
	units += (double)(exponent - 1) * (1 << f.n_digits);
	return sign | (units < infinity ? (uint16_t)units : infinity);
}

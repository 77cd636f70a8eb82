#include "tests/ref/half.h"

#include <stdint.h>
#include <string.h>

#define F16_MIN_NORMAL 0x38800000u /* 2^-14 as fp32 */
#define F16_OVERFLOW 0x477ff000u /* 65520 as fp32: rounds to infinity */
#define INFINITE 0x7f800000u

static uint32_t bits_of(float x)
{
	uint32_t bits;

	memcpy(&bits, &x, sizeof(bits));
	return bits;
}

static float float_of(uint32_t bits)
{
	float x;

	memcpy(&x, &bits, sizeof(x));
	return x;
}

static float f16_widen(uint16_t x)
{
	uint32_t sign = (uint32_t)(x & 0x8000) << 16, rest = x & 0x7fff;

	if (rest >= 0x7c00)
		return float_of(sign | INFINITE | (rest & 0x3ff) << 13);
	if (rest < 0x400)
		return float_of(sign | bits_of((float)rest * 0x1p-24f));
	return float_of(sign | ((rest << 13) + (112u << 23)));
}

static uint16_t f16_round(float x)
{
	uint32_t bits = bits_of(x), rest = bits & 0x7fffffff;
	uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);

	if (rest > INFINITE)
		return sign | 0x7e00;
	if (rest >= F16_OVERFLOW)
		return sign | 0x7c00;
	/* The last digit of fp32 numbers from 0.5 on is the smallest F16 number. */
	if (rest < F16_MIN_NORMAL)
		return sign | (uint16_t)(bits_of(float_of(rest) + 0.5f) - bits_of(0.5f));
	return sign | (uint16_t)((rest - (112u << 23) + 0xfff + (rest >> 13 & 1)) >> 13);
}

static uint16_t bf16_round(float x)
{
	uint32_t bits = bits_of(x);

	if ((bits & 0x7fffffff) > INFINITE)
		return (uint16_t)(bits >> 16 | 0x40);
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

enum weightd_dtype half_find(const char *name)
{
	static const struct {
		const char *name;
		enum weightd_dtype dtype;
	} names[] = {{"f32", WEIGHTD_F32}, {"bf16", WEIGHTD_BF16}, {"f16", WEIGHTD_F16}};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (!strcmp(name, names[i].name))
			return names[i].dtype;
	return 0;
}

void half_widen(float *to, const void *from, enum weightd_dtype dtype, size_t n)
{
	const uint16_t *halves = from;

	if (dtype == WEIGHTD_F32) {
		memcpy(to, from, n * sizeof(*to));
		return;
	}
	for (size_t i = 0; i < n; i++)
		to[i] = dtype == WEIGHTD_BF16 ? float_of((uint32_t)halves[i] << 16)
					      : f16_widen(halves[i]);
}

void half_round(void *to, enum weightd_dtype dtype, const float *from, float factor, size_t n)
{
	uint16_t *halves = to;
	float *floats = to;

	for (size_t i = 0; i < n; i++) {
		float x = from[i] * factor;

		if (dtype == WEIGHTD_F32)
			floats[i] = x;
		else
			halves[i] = dtype == WEIGHTD_BF16 ? bf16_round(x) : f16_round(x);
	}
}

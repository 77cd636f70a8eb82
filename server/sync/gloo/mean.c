#include "server/sync/gloo/mean.h"

#include <stdint.h>
#include <string.h>

static float of_bits(uint32_t bits)
{
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

static uint32_t to_bits(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	return bits;
}

static float of_bf16(uint16_t h)
{
	return of_bits((uint32_t)h << 16);
}

static uint16_t to_bf16(float f)
{
	uint32_t bits = to_bits(f);

	if (f != f)
		return (uint16_t)(bits >> 16 | 0x40); /* rounding could turn it into an infinity */
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float of_f16(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;

	if (rest >= 0x7c00) /* infinity, NaN */
		return of_bits(sign | 0x7f800000 | (rest & 0x3ff) << 13);
	if (rest >= 0x400)
		return of_bits(sign | ((rest << 13) + ((127 - 15) << 23)));
	/* A subnormal number counts units of 2^-24. */
	return of_bits(sign | to_bits((float)rest * 0x1p-24f));
}

static uint16_t to_f16(float f)
{
	uint32_t bits = to_bits(f), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;

	if (rest > 0x7f800000)
		return (uint16_t)(sign | 0x7e00 | (rest >> 13 & 0x3ff));
	if (rest >= 0x477ff000) /* 65520, which rounds up to infinity */
		return (uint16_t)(sign | 0x7c00);
	if (rest >= 0x38800000) /* 2^-14 */
		return (uint16_t)(sign |
				  (rest + 0xfff + (rest >> 13 & 1) - ((127 - 15) << 23)) >> 13);
	/* The unit of 0.5 is 2^-24: the addition rounds to it. */
	return (uint16_t)(sign | (to_bits(of_bits(rest) + 0.5f) - to_bits(0.5f)));
}

void mean_add(enum mean_type type, float *restrict sums, const void *restrict from, size_t n)
{
	const uint8_t *at = from;
	uint16_t h;
	float f;

	switch (type) {
	case MEAN_F32:
		for (size_t i = 0; i < n; i++) {
			memcpy(&f, at + 4 * i, sizeof(f));
			sums[i] += f;
		}
		break;
	case MEAN_BF16:
		for (size_t i = 0; i < n; i++) {
			memcpy(&h, at + 2 * i, sizeof(h));
			sums[i] += of_bf16(h);
		}
		break;
	default:
		for (size_t i = 0; i < n; i++) {
			memcpy(&h, at + 2 * i, sizeof(h));
			sums[i] += of_f16(h);
		}
		break;
	}
}

void mean_store(enum mean_type type, const float *restrict sums, size_t n, unsigned n_nodes,
		void *restrict to)
{
	float by = (float)n_nodes, f;
	uint8_t *at = to;
	uint16_t h;

	switch (type) {
	case MEAN_F32:
		for (size_t i = 0; i < n; i++) {
			f = sums[i] / by;
			memcpy(at + 4 * i, &f, sizeof(f));
		}
		break;
	case MEAN_BF16:
		for (size_t i = 0; i < n; i++) {
			h = to_bf16(sums[i] / by);
			memcpy(at + 2 * i, &h, sizeof(h));
		}
		break;
	default:
		for (size_t i = 0; i < n; i++) {
			h = to_f16(sums[i] / by);
			memcpy(at + 2 * i, &h, sizeof(h));
		}
		break;
	}
}

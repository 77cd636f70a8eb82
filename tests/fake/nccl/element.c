#include "tests/fake/nccl/element.h"

#include <stdint.h>
#include <string.h>

size_t element_size(int type)
{
	switch (type) {
	case ELEMENT_UINT8:
		return 1;
	case ELEMENT_FLOAT16:
	case ELEMENT_BFLOAT16:
		return 2;
	case ELEMENT_UINT32:
	case ELEMENT_FLOAT32:
		return 4;
	default:
		return 0;
	}
}

const char *element_name(int type)
{
	switch (type) {
	case ELEMENT_UINT8:
		return "ncclUint8";
	case ELEMENT_UINT32:
		return "ncclUint32";
	case ELEMENT_FLOAT16:
		return "ncclFloat16";
	case ELEMENT_BFLOAT16:
		return "ncclBfloat16";
	default:
		return "ncclFloat32";
	}
}

static float of_bits(uint32_t bits)
{
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

static uint32_t bits_of(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	return bits;
}

static float of_half(uint32_t h)
{
	const uint32_t sign = (h & 0x8000) << 16, rest = h & 0x7fff;

	if (rest >= 0x7c00)
		return of_bits(sign | 0x7f800000 | (rest & 0x3ff) << 13);
	if (rest >= 0x400)
		return of_bits(sign | ((rest << 13) + (112u << 23)));
	return of_bits(sign | bits_of((float)rest * 0x1p-24f));
}

static uint32_t to_half(float f)
{
	const uint32_t bits = bits_of(f), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;

	if (rest > 0x7f800000)
		return sign | 0x7e00;
	if (rest >= 0x477ff000) /* 65520 */
		return sign | 0x7c00;
	if (rest >= 0x38800000) /* 2^-14 */
		return sign | (rest + 0xfff + (rest >> 13 & 1) - (112u << 23)) >> 13;
	/* The unit of 0.5 is that of subnormal numbers. */
	return sign | (bits_of(of_bits(rest) + 0.5f) - bits_of(0.5f));
}

static uint32_t to_bfloat(float f)
{
	const uint32_t bits = bits_of(f);

	return f != f ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

static float load(int type, const char *at)
{
	uint16_t h;
	float f;

	if (type == ELEMENT_FLOAT32) {
		memcpy(&f, at, sizeof(f));
		return f;
	}
	memcpy(&h, at, sizeof(h));
	return type == ELEMENT_FLOAT16 ? of_half(h) : of_bits((uint32_t)h << 16);
}

static void store(int type, char *at, float f)
{
	uint16_t h;

	if (type == ELEMENT_FLOAT32) {
		memcpy(at, &f, sizeof(f));
		return;
	}
	h = (uint16_t)(type == ELEMENT_FLOAT16 ? to_half(f) : to_bfloat(f));
	memcpy(at, &h, sizeof(h));
}

static void add_integer(char *to, const char *from)
{
	uint32_t a, b;

	memcpy(&a, to, sizeof(a));
	memcpy(&b, from, sizeof(b));
	a += b;
	memcpy(to, &a, sizeof(a));
}

void element_add(int type, char *to, const char *from, size_t n_bytes)
{
	for (size_t i = 0; i < n_bytes; i += element_size(type)) {
		if (type == ELEMENT_UINT32)
			add_integer(to + i, from + i);
		else
			store(type, to + i, load(type, to + i) + load(type, from + i));
	}
}

void element_divide(int type, char *at, size_t n_bytes, int n)
{
	char by[sizeof(float)];

	store(type, by, 1.0f / (float)n);
	for (size_t i = 0; i < n_bytes; i += element_size(type))
		store(type, at + i, load(type, at + i) * load(type, by));
}

/*
 * Kernels that convert: each instruction set of this machine against single numbers, bit by bit, NaN included
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>

#include "tests/unit/train_types.h"

#define N_HALVES 65536
#define N_SIDES 7 /* floats around the middle of two neighbours */
#define EDGE 80 /* more than one line, with each rest of a vector */
#define GUARD 16

static const enum kernel_type types[] = {KERNEL_BF16, KERNEL_F16};

static float floats[N_HALVES * N_SIDES];
static uint16_t halves[N_HALVES * N_SIDES];

static void for_each_type(void (*check)(const struct kernels *k, enum kernel_type type))
{
	const struct kernels *k;

	for (size_t isa = 0; (k = kernels_at(isa)); isa++)
		for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++)
			check(k, types[i]);
}

static void check_rounded(const struct kernels *k, enum kernel_type type, size_t n)
{
	k->round(halves, type, floats, n);
	for (size_t i = 0; i < n; i++)
		if (halves[i] != reference_round(floats[i], type))
			fail_msg("%s, type %d: %08x becomes %04x, not %04x", k->isa, type,
				 bits_of(floats[i]), halves[i], reference_round(floats[i], type));
}

static void check_widen(const struct kernels *k, enum kernel_type type)
{
	for (size_t i = 0; i < N_HALVES; i++)
		halves[i] = (uint16_t)i;
	k->widen(floats, halves, type, N_HALVES);
	for (size_t i = 0; i < N_HALVES; i++)
		if (bits_of(floats[i]) != bits_of(reference_widen((uint16_t)i, type)))
			fail_msg("%s, type %d: %04zx becomes %08x, not %08x", k->isa, type, i,
				 bits_of(floats[i]), bits_of(reference_widen((uint16_t)i, type)));
}

static void test_all_16_bit_numbers_widen_exactly(void **arg)
{
	(void)arg;
	for_each_type(check_widen);
}

/* Each number, the middle to the next one, and the floats beside the two. */
static void check_round(const struct kernels *k, enum kernel_type type)
{
	uint32_t digits = type == KERNEL_BF16 ? 16 : 13;

	for (uint32_t i = 0; i < N_HALVES; i++) {
		uint32_t bits = bits_of(reference_widen((uint16_t)i, type));
		float below = reference_widen((uint16_t)i, type);
		float above = reference_widen((uint16_t)(i + 1), type);
		/* Denormal neighbours are not a power of two of digits apart as floats are. */
		uint32_t middle = isfinite(below) && isfinite(above)
					  ? bits_of((float)(((double)below + (double)above) / 2))
					  : bits + (1u << (digits - 1));

		for (uint32_t side = 0; side < 3; side++) {
			floats[i * N_SIDES + side] = float_of(bits + side - 1);
			floats[i * N_SIDES + 3 + side] = float_of(middle + side - 1);
		}
		floats[i * N_SIDES + 6] = float_of(i << 16 | (i * 40503 & 0xffff));
	}
	check_rounded(k, type, N_HALVES * N_SIDES);
}

static void test_floats_round_to_nearest_even(void **arg)
{
	(void)arg;
	for_each_type(check_round);
}

/* The largest numbers, the first that is infinite, the smallest ones, signs, NaN of all kinds. */
static void check_edges(const struct kernels *k, enum kernel_type type)
{
	static const struct {
		uint32_t bits;
		uint16_t bf16, f16;
	} edges[] = {
		{0x00000000, 0x0000, 0x0000}, {0x80000000, 0x8000, 0x8000},
		{0x3f800000, 0x3f80, 0x3c00}, {0xbf800000, 0xbf80, 0xbc00},
		{0x477fe000, 0x4780, 0x7bff}, {0x477fefff, 0x4780, 0x7bff},
		{0x477ff000, 0x4780, 0x7c00}, {0xc77ff000, 0xc780, 0xfc00},
		{0x7f7f0000, 0x7f7f, 0x7c00}, {0x7f7f7fff, 0x7f7f, 0x7c00},
		{0x7f7f8000, 0x7f80, 0x7c00}, {0xff7fffff, 0xff80, 0xfc00},
		{0x7f800000, 0x7f80, 0x7c00}, {0xff800000, 0xff80, 0xfc00},
		{0x38800000, 0x3880, 0x0400}, {0x387fe000, 0x3880, 0x0400},
		{0x33800000, 0x3380, 0x0001}, {0x33000000, 0x3300, 0x0000},
		{0x33000001, 0x3300, 0x0001}, {0xb3000001, 0xb300, 0x8001},
		{0x00008000, 0x0000, 0x0000}, {0x00008001, 0x0001, 0x0000},
		{0x00018000, 0x0002, 0x0000}, {0x80018000, 0x8002, 0x8000},
		{0x7f800001, 0x7fc0, 0x7e00}, {0xff801fff, 0xffc0, 0xfe00},
		{0x7fc00000, 0x7fc0, 0x7e00}, {0xffffffff, 0xffff, 0xffff},
		{0x7fa12345, 0x7fe1, 0x7f09}, {0x3f808000, 0x3f80, 0x3c04},
		{0x3f818000, 0x3f82, 0x3c0c}, {0x3f801000, 0x3f80, 0x3c00},
		{0x3f803000, 0x3f80, 0x3c02},
	};
	size_t n = sizeof(edges) / sizeof(*edges);

	for (size_t i = 0; i < n; i++)
		floats[i] = float_of(edges[i].bits);
	k->round(halves, type, floats, n);
	for (size_t i = 0; i < n; i++) {
		uint16_t want = type == KERNEL_BF16 ? edges[i].bf16 : edges[i].f16;

		if (halves[i] != want)
			fail_msg("%s, type %d: %08x becomes %04x, not %04x", k->isa, type,
				 edges[i].bits, halves[i], want);
	}
}

static void test_edges_round_as_written_here(void **arg)
{
	(void)arg;
	for_each_type(check_edges);
}

/* Any count from any address; what lies before and behind stays. */
static void check_ragged(const struct kernels *k, enum kernel_type type)
{
	for (size_t n = 0; n <= EDGE; n++) {
		size_t shift = n % 5;
		float *wide = floats + GUARD + shift;
		uint16_t *narrow = halves + GUARD + n % 3;

		for (size_t i = 0; i < GUARD + EDGE + GUARD; i++) {
			floats[i] = 5;
			halves[i] = (uint16_t)(0x3c00 + i);
		}
		k->widen(wide, narrow, type, n);
		for (size_t i = 0; i < n; i++)
			assert_int_equal(bits_of(wide[i]),
					 bits_of(reference_widen(narrow[i], type)));
		assert_true(wide[-1] == 5 && wide[n] == 5);
		for (size_t i = 0; i < n; i++)
			narrow[i] = 7;
		narrow[-1] = narrow[n] = 7;
		k->round(narrow, type, wide, n);
		for (size_t i = 0; i < n; i++)
			assert_int_equal(narrow[i], reference_round(wide[i], type));
		assert_true(narrow[-1] == 7 && narrow[n] == 7);
	}
}

static void test_counts_and_addresses_are_free(void **arg)
{
	(void)arg;
	for_each_type(check_ragged);
}

static void test_f32_is_a_copy(void **arg)
{
	const float from[] = {1, -0.0f, INFINITY, 0x1p-149f, 3};
	const struct kernels *k;

	(void)arg;
	for (size_t isa = 0; (k = kernels_at(isa)); isa++) {
		float widened[5], rounded[5];

		k->widen(widened, from, KERNEL_F32, 5);
		k->round(rounded, KERNEL_F32, from, 5);
		assert_memory_equal(widened, from, sizeof(from));
		assert_memory_equal(rounded, from, sizeof(from));
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_16_bit_numbers_widen_exactly),
		cmocka_unit_test(test_floats_round_to_nearest_even),
		cmocka_unit_test(test_edges_round_as_written_here),
		cmocka_unit_test(test_counts_and_addresses_are_free),
		cmocka_unit_test(test_f32_is_a_copy),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

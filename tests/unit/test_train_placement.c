#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>

#include "weightd-train.h"

#define ROUNDS 20000
#define PARTS_MAX 256

static uint64_t draw_wide(void)
{
	uint64_t n = (uint64_t)random() << 33 ^ (uint64_t)random() << 11 ^ (uint64_t)random();

	return n >> random() % 64;
}

static void check_cuts(uint64_t n_elements, uint64_t block, uint32_t n)
{
	uint64_t cuts[PARTS_MAX + 1], least = UINT64_MAX, most = 0;

	assert_int_equal(weightd_cuts(n_elements, block, n, cuts), 0);
	assert_int_equal(cuts[0], 0);
	assert_int_equal(cuts[n], n_elements);
	for (uint32_t i = 0; i < n; i++) {
		uint64_t size = cuts[i + 1] - cuts[i];

		assert_true(cuts[i] <= cuts[i + 1]);
		assert_int_equal(cuts[i] % block, 0);
		least = size < least ? size : least;
		most = size > most ? size : most;
	}
	assert_true(most - least <= block);
}

static void cuts_split_no_block_and_are_even_within_one(void **state)
{
	(void)state;
	for (int round = 0; round < ROUNDS; round++) {
		uint64_t n_elements = draw_wide(), block = 1 + draw_wide() % 5000;
		uint32_t n = 1 + (uint32_t)random() % PARTS_MAX;

		check_cuts(n_elements, block, n);
		check_cuts(n_elements % 3000, 32, n % 7 + 1);
	}
	check_cuts(UINT64_MAX, 1, 256);
	check_cuts(UINT64_MAX, UINT64_MAX, 3);
	check_cuts(0, 32, 4);
}

static void no_parts_and_no_block_are_refused(void **state)
{
	uint64_t cuts[2];

	(void)state;
	assert_int_equal(weightd_cuts(10, 0, 1, cuts), -EINVAL);
	assert_int_equal(weightd_cuts(10, 1, 0, cuts), -EINVAL);
}

static void placements_have_the_names_of_dtensor(void **state)
{
	(void)state;
	assert_string_equal(weightd_placement_name(WEIGHTD_REPLICATE), "Replicate");
	assert_string_equal(weightd_placement_name(WEIGHTD_SHARD), "Shard");
	assert_string_equal(weightd_placement_name(WEIGHTD_PARTIAL), "Partial");
	assert_null(weightd_placement_name(0));
	assert_null(weightd_placement_name(4));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cuts_split_no_block_and_are_even_within_one),
		cmocka_unit_test(no_parts_and_no_block_are_refused),
		cmocka_unit_test(placements_have_the_names_of_dtensor),
	};

	srandom(1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * Tests that strategies which pool gradients, and gather units of parameters, leave the bits of a plain loop, on one node and on
 * several, with one replica or more
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/train_node_runs.h"

static const struct setup pool_kinds[] = {
	{.strategy = "zero2"},
	{.strategy = "zero2", .max_norm = 0.5, .nan_step = 5},
	{.strategy = "zero2", .has_unused = true},
	{.strategy = "zero3"},
	{.strategy = "zero3", .max_norm = 0.5, .nan_step = 5, .without_prefetch = true},
	{.strategy = "zero3", .has_unused = true, .keeps_units = true},
	{.strategy = "zero3", .dtype = WEIGHTD_BF16, .grad_dtype = WEIGHTD_F32, .n_passes = 1},
	{.strategy = "zero3", .dtype = WEIGHTD_F16, .init_scale = 262144, .is_one_unit = true},
};

/* By the caller's thread, with its engine, and by a thread with Gloo. */
static void test_pools_leave_the_bits_of_a_plain_loop(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(shapes); i++)
		for (size_t k = 0; k < ARRAY_LEN(pool_kinds); k++) {
			struct setup setup = kind_in_shape(&pool_kinds[k], &shapes[i]);

			has_pairs = (i + k) % 2;
			if (is_some_pair(i, k, ranks_of(&setup) > 1 ? 2 : 3))
				expect_bits(&setup);
		}
}

/* Sums of these gradients are exact in any order. */
static const struct setup replica_kinds[] = {
	{.strategy = "zero2", .n_nodes = 2, .n_ranks = 2, .n_replicas = 2},
	{.strategy = "zero3", .n_nodes = 2, .n_ranks = 4, .n_replicas = 2},
	{.strategy = "zero3", .n_nodes = 4, .n_ranks = 4, .n_replicas = 2, .is_blind = true},
	{.strategy = "zero2",
	 .n_nodes = 4,
	 .n_ranks = 4,
	 .n_replicas = 2,
	 .is_blind = true,
	 .max_norm = 0.5},
	{.strategy = "zero3", .n_nodes = 4, .n_ranks = 4, .n_replicas = 4, .is_blind = true},
};

static void test_replicas_leave_the_bits_of_a_plain_loop(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(replica_kinds); i++) {
		has_pairs = i % 2;
		expect_bits(&replica_kinds[i]);
	}
}

/* One node: the thread sums alone. */
static const struct setup alone_kinds[] = {
	{.strategy = "zero2", .n_nodes = 1, .n_ranks = 3},
	{.strategy = "zero3", .n_nodes = 1, .n_ranks = 2, .max_norm = 0.5, .nan_step = 5},
	{.strategy = "zero3", .n_nodes = 1, .n_ranks = 3, .on_death = WEIGHTD_DEATH_FINISH},
};

static void expect_unharmed(const struct setup *setup, unsigned seed)
{
	struct union_result killed = run_killed(setup, kills_wanted(4), seed);

	expect_plain(setup, &killed);
	union_free(&killed);
}

static void test_kills_of_ranks_with_pools_leave_the_same_bits(void **state)
{
	(void)state;
	has_pairs = false;
	for (size_t i = 0; i < ARRAY_LEN(pool_kinds); i++) {
		struct setup setup = kind_in_shape(&pool_kinds[i], &shapes[i % ARRAY_LEN(shapes)]);

		if (is_some_pair(i, 0, 3))
			expect_unharmed(&setup, (unsigned)i);
	}
	for (size_t i = 0; i < ARRAY_LEN(replica_kinds); i++)
		if (is_some_pair(i, 0, 2))
			expect_unharmed(&replica_kinds[i], (unsigned)i);
	for (size_t i = 0; i < ARRAY_LEN(alone_kinds); i++)
		expect_unharmed(&alone_kinds[i], (unsigned)i);
}

int main(void)
{
	const struct CMUnitTest all[] = {
		cmocka_unit_test(test_pools_leave_the_bits_of_a_plain_loop),
		cmocka_unit_test(test_replicas_leave_the_bits_of_a_plain_loop),
		cmocka_unit_test(test_kills_of_ranks_with_pools_leave_the_same_bits),
	};

	return cmocka_run_group_tests(all, NULL, NULL);
}

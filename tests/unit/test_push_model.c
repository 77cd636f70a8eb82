/*
 * The model of a push against what was measured, and against what must hold for any group.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "libclient/weightctl/verbs/push_model.h"

#define MIB ((uint64_t)1 << 20)

static struct push_model model(const char *name, struct push_model_cluster c)
{
	const struct push_model_schedule *s = push_model_schedules;
	struct push_model f;

	while (s->name && strcmp(s->name, name) != 0)
		s++;
	assert_non_null(s->name);
	c.chunk = c.chunk ? c.chunk : MIB;
	c.slowness = c.slowness > 0 ? c.slowness : 1;
	c.digest_rate = c.digest_rate > 0 ? c.digest_rate : 1e18;
	push_model_make(s, &c, &f);
	return f;
}

static void assert_near(const char *what, double is, double expected, double tolerance)
{
	if (fabs(is - expected) <= tolerance * expected)
		return;
	print_error("%s: %g is not within %g%% of %g\n", what, is, 100 * tolerance, expected);
	fail();
}

/* 256 MiB over links of 1 Gb/s that carry 957 Mb/s, in network namespaces: medians, in seconds. */
static void test_two_to_four_nodes_take_what_was_measured(void **state)
{
	static const struct {
		const char *schedule;
		double seconds[3]; /* time with 1, 2 and 3 receivers; 0: not measured */
	} MEASURED[] = {
		{"chain", {2.244, 2.273, 2.258}}, /* write() and recv() */
		{"chain", {2.262, 2.290, 2.373}}, /* Gloo's send and recv, 4 MiB */
		{"one-to-all", {0, 4.493, 6.740}},   {"binomial", {2.251, 4.514, 6.734}}, /* Gloo */
		{"binomial", {2.260, 4.534, 6.741}}, /* OpenMPI */
	};

	(void)state;
	for (unsigned i = 0; i < sizeof(MEASURED) / sizeof(MEASURED[0]); i++)
		for (unsigned r = 1; r <= 3; r++) {
			struct push_model f = model(MEASURED[i].schedule,
						    (struct push_model_cluster){
							    .n_nodes = r + 1,
							    .n_bytes = 256 * MIB,
							    .rate = 0.957e9 / 8,
							    .latency_s = 1e-4,
						    });
			double seconds = MEASURED[i].seconds[r - 1];

			if (seconds > 0)
				assert_near(MEASURED[i].schedule, f.moves_s, seconds, 0.06);
		}
}

/* The same with one node at 250 Mb/s: 8.998 s. */
static void test_a_straggler_at_the_end_takes_what_was_measured(void **state)
{
	struct push_model f = model("chain", (struct push_model_cluster){
						     .n_nodes = 4,
						     .n_bytes = 256 * MIB,
						     .rate = 0.957e9 / 8,
						     .n_stragglers = 1,
						     .slowness = 4,
					     });

	(void)state;
	assert_near("all", f.moves_s, 8.998, 0.02);
	assert_near("others", f.others_s, 2.258, 0.02);
}

static struct push_model_cluster terabyte(uint64_t n_nodes)
{
	return (struct push_model_cluster){
		.n_nodes = n_nodes,
		.n_bytes = UINT64_C(1000000000000),
		.rate = 42.5e9,
		.chunk = 4 * MIB,
		.latency_s = 1e-4,
	};
}

static void test_a_chain_of_any_length_takes_about_the_same(void **state)
{
	double two = model("chain", terabyte(2)).moves_s;

	(void)state;
	assert_near("2 nodes", two, 23.53, 0.001);
	assert_near("1,000 nodes", model("chain", terabyte(1000)).moves_s, 23.7, 0.01);
	assert_near("4,000 nodes", model("chain", terabyte(4000)).moves_s, 24.3, 0.01);
	assert_near("to all", model("one-to-all", terabyte(1000)).moves_s, 999 * two, 0.001);
}

static void test_two_nodes_are_a_link_whatever_the_schedule(void **state)
{
	(void)state;
	for (const struct push_model_schedule *s = push_model_schedules; s->name; s++) {
		struct push_model f = model(s->name, terabyte(2));

		assert_near(s->name, f.moves_s, 23.53, 0.001);
		assert_near(s->name, f.root_bytes, 1e12, 1e-9);
		assert_near(s->name, f.link_bytes, 1e12, 1e-9);
	}
}

static void test_every_receiver_gets_every_byte(void **state)
{
	(void)state;
	for (uint64_t n = 2; n < 70; n++)
		for (const struct push_model_schedule *s = push_model_schedules; s->name; s++) {
			struct push_model f = model(s->name, terabyte(n));
			double all = (double)(n - 1) * 1e12;

			/* Bytes scattered before a ring reach the others twice, but for their own part. */
			if (strcmp(s->name, "ring") == 0)
				all += (double)(n - 1) / (double)n * 1e12;
			assert_near(s->name, f.all_bytes, all, 1e-9);
			assert_true(f.link_bytes <= f.root_bytes * (1 + 1e-9));
			assert_true(f.root_bytes <= f.all_bytes * (1 + 1e-9));
			assert_true(f.again_bytes < 1);
			/* Nobody receives faster than its link, and the publisher sends no faster than its own. */
			assert_true(f.moves_s >= 1e12 / 42.5e9);
			assert_true(f.moves_s >= f.root_bytes / 42.5e9);
		}
}

static void test_only_those_that_wait_for_a_straggler_are_late(void **state)
{
	(void)state;
	for (uint64_t slow = 1; slow < 64; slow += 6)
		for (const struct push_model_schedule *s = push_model_schedules; s->name; s++) {
			struct push_model_cluster c = terabyte(64);
			struct push_model without = model(s->name, c), with;

			c.n_stragglers = slow;
			c.slowness = 5;
			with = model(s->name, c);
			assert_true(with.moves_s >= 5 * 1e12 / 42.5e9);
			assert_true(with.moves_s >= without.moves_s);
			assert_true(with.others_s <= with.moves_s);
			assert_true(with.moves_s <= 5 * without.moves_s + 1);
			if (strcmp(s->name, "chain") == 0)
				assert_true(with.others_s <= without.moves_s);
			c.slowness = 1; /* as slow as the rest */
			assert_near(s->name, model(s->name, c).moves_s, without.moves_s, 1e-6);
		}
}

static void test_a_failure_costs_its_timeout_and_no_byte_twice(void **state)
{
	struct push_model_cluster c = terabyte(1000);
	struct push_model chain, binomial;

	(void)state;
	c.n_failures = 3;
	c.stall_s = 5;
	chain = model("chain", c);
	binomial = model("binomial", c);
	assert_near("chain", chain.moves_s, 23.7 + 3 * 5.5, 0.02);
	assert_true(chain.again_bytes <= 3 * chain.all_bytes / 4);
	/* A schedule without epochs starts anew. */
	assert_near("binomial", binomial.moves_s,
		    model("binomial", terabyte(1000)).moves_s * 2.5 + 15, 0.001);
}

static void test_both_digests_are_counted(void **state)
{
	struct push_model_cluster c = terabyte(4);

	(void)state;
	c.digest_rate = 10e9;
	assert_near("total", model("chain", c).total_s, 23.53 + 200, 0.001);
}

static void test_the_largest_group_overflows_nothing(void **state)
{
	(void)state;
	for (const struct push_model_schedule *s = push_model_schedules; s->name; s++) {
		struct push_model f = model(s->name,
					    (struct push_model_cluster){
						    .n_nodes = PUSH_MODEL_NODES_MAX,
						    .n_bytes = PUSH_MODEL_BYTES_MAX,
						    .rate = 1,
						    .chunk = PUSH_MODEL_BYTES_MAX,
						    .latency_s = 3600,
						    .n_stragglers = PUSH_MODEL_NODES_MAX - 1,
						    .slowness = 1e6,
						    .n_failures = PUSH_MODEL_FAILURES_MAX,
						    .stall_s = 3600,
					    });

		assert_true(isfinite(f.total_s) && f.total_s > 0);
		assert_true(f.all_bytes < 1.8e19 && f.again_bytes < 1.8e19);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_two_to_four_nodes_take_what_was_measured),
		cmocka_unit_test(test_a_straggler_at_the_end_takes_what_was_measured),
		cmocka_unit_test(test_a_chain_of_any_length_takes_about_the_same),
		cmocka_unit_test(test_two_nodes_are_a_link_whatever_the_schedule),
		cmocka_unit_test(test_every_receiver_gets_every_byte),
		cmocka_unit_test(test_only_those_that_wait_for_a_straggler_are_late),
		cmocka_unit_test(test_a_failure_costs_its_timeout_and_no_byte_twice),
		cmocka_unit_test(test_both_digests_are_counted),
		cmocka_unit_test(test_the_largest_group_overflows_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

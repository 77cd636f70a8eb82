/*
 * A connection with an unseen end is given up, but none that is about to end, or was left out once.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "bpf/tcp/socket_census.h"

#define PERIOD_NS 100000000u

struct scene {
	struct socket_census census;
	struct totals totals;
	uint64_t now_ns;
};

/* One that finds so many. */
static void look(struct scene *s, unsigned n)
{
	socket_census_begin(&s->census);
	while (n-- > 0)
		socket_census_see(&s->census);
	s->now_ns += PERIOD_NS;
	socket_census_end(&s->census, &s->totals, s->now_ns);
}

static void test_all_that_are_there_are_found(void **state)
{
	struct scene s = {.totals = {.sockets = 3}};

	(void)state;
	for (int i = 0; i < 20; i++)
		look(&s, 3);
	s.totals.closed = 2;
	for (int i = 0; i < 20; i++)
		look(&s, 1);
	assert_int_equal(s.census.lost, 0);
	assert_false(socket_census_is_short(&s.census));
}

static void test_what_begins_or_ends_meanwhile_is_not_missing(void **state)
{
	struct scene s = {};

	(void)state;
	for (int i = 0; i < 100; i++) {
		s.totals.sockets += 7; /* an early look found none of them */
		s.totals.closed += i % 2 ? 9 : 5;
		look(&s, i % 2 ? 0 : 1);
	}
	assert_int_equal(s.census.lost, 0);
	assert_false(socket_census_is_short(&s.census));
}

static void test_one_that_is_missing_for_some_time_is_given_up(void **state)
{
	struct scene s = {.totals = {.sockets = 3}};

	(void)state;
	look(&s, 3);
	look(&s, 2);
	assert_false(socket_census_is_short(&s.census));
	look(&s, 2);
	assert_true(socket_census_is_short(&s.census));
	for (int i = 0; i < 10; i++)
		look(&s, 2);
	assert_int_equal(s.census.lost, 1);
	s.totals.closed += 2;
	for (int i = 0; i < 10; i++)
		look(&s, 0);
	assert_int_equal(s.census.lost, 1);
	assert_true(socket_census_is_short(&s.census)); /* it stays short */
	s.totals.sockets += 4;
	look(&s, 4);
	for (int i = 0; i < 10; i++)
		look(&s, 1);
	assert_int_equal(s.census.lost, 4);
}

static void test_one_that_was_left_out_now_and_then_is_there(void **state)
{
	struct scene s = {.totals = {.sockets = 300}};

	(void)state;
	look(&s, 300);
	for (int i = 0; i < 100; i++)
		look(&s, i % 4 ? 299 : 300);
	assert_int_equal(s.census.lost, 0);
}

static void test_many_looks_at_once_prove_nothing(void **state)
{
	struct scene s = {.totals = {.sockets = 2}};

	(void)state;
	look(&s, 2);
	for (int i = 0; i < 1000; i++) {
		look(&s, 1);
		s.now_ns -= PERIOD_NS;
	}
	assert_int_equal(s.census.lost, 0);
	assert_true(socket_census_is_short(&s.census));
}

static void test_the_fewest_that_were_missing_are_given_up(void **state)
{
	static const unsigned found[] = {6, 2, 7, 5, 6, 7, 7, 7};
	struct scene s = {.totals = {.sockets = 10}};

	(void)state;
	look(&s, 10);
	for (size_t i = 0; i < sizeof(found) / sizeof(*found); i++)
		look(&s, found[i]);
	assert_int_equal(s.census.lost, 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_that_are_there_are_found),
		cmocka_unit_test(test_what_begins_or_ends_meanwhile_is_not_missing),
		cmocka_unit_test(test_one_that_is_missing_for_some_time_is_given_up),
		cmocka_unit_test(test_one_that_was_left_out_now_and_then_is_there),
		cmocka_unit_test(test_many_looks_at_once_prove_nothing),
		cmocka_unit_test(test_the_fewest_that_were_missing_are_given_up),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Costs: they last while a user holds something, and the table of those that hold nothing is bounded. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/state/cost.h"
#include "server/state/server.h"

#define ALICE 4001
#define BOB 4002

static struct server server;

static int set_up(void **state)
{
	(void)state;
	costs_init(&server.costs);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	costs_deinit(&server.costs); /* asserts that no reference is left */
	return 0;
}

static void counters_of_users_are_apart(void **state)
{
	(void)state;
	cost_of(&server, ALICE)->n_refused++;
	cost_of(&server, BOB)->n_refused += 2;
	cost_of(&server, ALICE)->n_refused++;
	cost_of(&server, BOB)->loop_ns = 7;
	assert_int_equal(cost_of(&server, ALICE)->n_refused, 2);
	assert_int_equal(cost_of(&server, ALICE)->loop_ns, 0);
	assert_int_equal(cost_of(&server, BOB)->n_refused, 2);
}

static void see_strangers(unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		cost_of(&server, 100000 + i)->n_requests++;
}

static void users_without_references_are_forgotten_the_longest_unseen_first(void **state)
{
	(void)state;
	cost_of(&server, ALICE)->n_refused = 1;
	cost_of(&server, BOB)->n_refused = 1;
	see_strangers(COST_IDLE_MAX - 2);
	(void)cost_of(&server, ALICE); /* is seen again */
	cost_of(&server, 99999)->n_refused = 1;
	assert_int_equal(server.costs.n_idle, COST_IDLE_MAX);
	assert_int_equal(cost_of(&server, ALICE)->n_refused, 1);
	assert_int_equal(cost_of(&server, BOB)->n_refused, 0);
}

static void a_reference_keeps_a_user_among_many_others(void **state)
{
	struct cost *alice = cost_ref(&server, ALICE);
	struct cost *again = cost_ref(&server, ALICE);

	(void)state;
	assert_ptr_equal(alice, again);
	alice->held_bytes = 4096;
	see_strangers(2 * COST_IDLE_MAX);
	assert_ptr_equal(cost_of(&server, ALICE), alice);
	assert_null(cost_unref(again));
	see_strangers(2 * COST_IDLE_MAX);
	assert_int_equal(cost_of(&server, ALICE)->held_bytes, 4096);
	assert_null(cost_unref(alice));
	see_strangers(2 * COST_IDLE_MAX);
	assert_int_equal(server.costs.n_idle, COST_IDLE_MAX);
	assert_int_equal(cost_of(&server, ALICE)->held_bytes, 0);
}

static void answers_are_counted_by_powers_of_two(void **state)
{
	struct cost *c = cost_of(&server, ALICE);

	(void)state;
	cost_answered(c, 0);
	cost_answered(c, WIRE_COST_SPAN_NS);
	cost_answered(c, WIRE_COST_SPAN_NS + 1);
	cost_answered(c, 2000000);
	cost_answered(c, 2000001);
	cost_answered(c, UINT64_MAX);
	assert_int_equal(c->answered[0], 2);
	assert_int_equal(c->answered[1], 1);
	assert_int_equal(c->answered[7], 1);
	assert_int_equal(c->answered[8], 1);
	assert_int_equal(c->answered[WIRE_COST_SPANS - 1], 1);
}

static void users_are_listed_by_uid(void **state)
{
	const uid_t uids[] = {0, 63, 64, 65, 4001, UINT32_MAX - 1};
	const struct cost *c;
	uint64_t from = 0;
	unsigned n = 0;

	(void)state;
	for (int i = 5; i >= 0; i--)
		(void)cost_of(&server, uids[i]);
	for (; (c = costs_next(&server.costs, from)); from = (uint64_t)c->uid + 1)
		assert_int_equal(c->uid, uids[n++]);
	assert_int_equal(n, 6);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(counters_of_users_are_apart, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			users_without_references_are_forgotten_the_longest_unseen_first, set_up,
			tear_down),
		cmocka_unit_test_setup_teardown(a_reference_keeps_a_user_among_many_others, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(answers_are_counted_by_powers_of_two, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(users_are_listed_by_uid, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

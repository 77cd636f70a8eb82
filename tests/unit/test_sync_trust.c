/* Signatures by an expired certificate, and two versions with one number. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "sim.h"

#define S SIM_SECOND

static bool refuses_it(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	const char *code = json_string_value(json_object_get(message, "code"));

	(void)to;
	if (code && strcmp(code, "signature") == 0)
		*(unsigned *)s->userdata |= 1u << from;
	return true;
}

/* All but the last have a version of a publisher with an expired and renewed certificate. */
static struct sim *late(unsigned n, unsigned *ret_refused)
{
	struct sim *s = sim_new(
		&(struct sim_options){.n_nodes = n, .policy = POLICY_QUORUM, .seed = n});
	char sync[SYNC_ID_SIZE];

	*ret_refused = 0;
	s->on_message = refuses_it;
	s->userdata = ret_refused;
	sim_run(s, S);
	sim_kill(s, n - 1);
	assert_int_equal(sim_push(s, 0, sync), 0);
	assert_true(sim_run_until(s, sim_is_converged, 60 * S));
	s->nodes[0].over_ns = s->now_ns;
	s->nodes[0].is_renewed = true;
	sim_run(s, S);
	return s;
}

static void test_what_most_have_is_taken_whenever_it_was_signed(void **state)
{
	unsigned refused;
	struct sim *s = late(4, &refused);

	(void)state;
	sim_start(s, 3);
	assert_true(sim_run_until(s, sim_is_converged, 60 * S));
	assert_int_equal(sim_serves(s, 3), 1);
	sim_free(s);
}

/* A thief of the old key could have signed it now, if only one other node offers it. */
static void test_what_few_have_is_not_taken_before_more_do(void **state)
{
	unsigned refused;
	struct sim *s = late(4, &refused);

	(void)state;
	sim_kill(s, 1);
	sim_kill(s, 2);
	sim_start(s, 3);
	sim_run(s, 120 * S);
	assert_int_equal(refused, 1u << 3);
	assert_int_equal(sim_serves(s, 3), 0);
	sim_start(s, 1);
	assert_true(sim_run_until(s, sim_is_converged, 60 * S)); /* two of three */
	assert_int_equal(sim_serves(s, 3), 1);
	sim_free(s);
}

static void test_what_ones_own_record_has_is_taken_from_anybody(void **state)
{
	unsigned refused;
	struct sim *s = late(4, &refused);

	(void)state;
	sim_kill(s, 2);
	sim_lose_data(s, 1);
	assert_true(sim_run_until(s, sim_is_converged, 60 * S));
	assert_int_equal(sim_serves(s, 1), 1);
	assert_int_equal(refused, 0);
	sim_free(s);
}

static void test_a_push_is_signed_with_what_is_good_now(void **state)
{
	unsigned refused;
	struct sim *s = late(3, &refused);
	char sync[SYNC_ID_SIZE];

	(void)state;
	s->nodes[0].is_renewed = false;
	assert_int_equal(sim_push(s, 0, sync), 0);
	assert_true(sim_run_until(s, sim_ended, 60 * S));
	assert_string_equal(s->nodes[0].outcome, "failed");
	assert_int_equal(refused, 1u << 1);
	s->nodes[0].is_renewed = true;
	sim_forget_end(s, 0);
	assert_int_equal(sim_push(s, 0, sync), 0);
	assert_true(sim_run_until(s, sim_ended, 60 * S));
	assert_string_equal(s->nodes[0].outcome, "committed");
	sim_free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_most_have_is_taken_whenever_it_was_signed),
		cmocka_unit_test(test_what_few_have_is_not_taken_before_more_do),
		cmocka_unit_test(test_what_ones_own_record_has_is_taken_from_anybody),
		cmocka_unit_test(test_a_push_is_signed_with_what_is_good_now),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * The bytes sent for a version that resembles the previous one: agents in a simulated world. Their
 * weightds may have lost that one, or have another version by its number.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "ipc/base/num.h"
#include "sim_jobs.h"

#define S SIM_SECOND
#define SIZE (64 * MIB)
#define CHANGED (3 * MIB)

static struct sim *world(unsigned n, enum policy policy, uint64_t n_changed)
{
	struct sim *s = sim_new(&(struct sim_options){.n_nodes = n,
						      .n_publishers = 2,
						      .policy = policy,
						      .n_bytes = SIZE,
						      .n_changed = n_changed,
						      .seed = n + 11});

	sim_run(s, S); /* they connect and exchange heads */
	return s;
}

static void begin(struct sim *s, unsigned node)
{
	char sync[SYNC_ID_SIZE];

	for (unsigned i = 0; i < s->options.n_nodes; i++) {
		s->nodes[i].n_received = s->nodes[i].n_received_again = 0;
		sim_forget_end(s, i);
	}
	assert_int_equal(sim_push(s, node, sync), 0);
}

static void push(struct sim *s, unsigned node)
{
	begin(s, node);
	assert_true(sim_run_until(s, sim_ended, 300 * S)); /* at node 0, which is in all of them */
	if (strcmp(s->nodes[0].outcome, "committed") != 0)
		fail_msg("%s", s->nodes[0].why);
	assert_true(sim_run_until(s, sim_is_converged, 120 * S));
	assert_int_equal(sim_serves(s, node), s->n_contents);
}

static void assert_received(struct sim *s, unsigned node, uint64_t n_bytes)
{
	if (s->nodes[node].n_received != n_bytes)
		fail_msg("node %u received %ju bytes, not %ju", node,
			 (uintmax_t)s->nodes[node].n_received, (uintmax_t)n_bytes);
}

static uint64_t said(struct sim *s, unsigned node, const char *key)
{
	return sim_number(s->nodes[node].end, key);
}

static void test_what_did_not_change_does_not_travel(void **state)
{
	struct sim *s = world(4, POLICY_ALL, CHANGED);

	(void)state;
	push(s, 0);
	for (unsigned i = 1; i < 4; i++)
		assert_received(s, i, SIZE);
	assert_int_equal(said(s, 0, "changed"), SIZE);
	for (unsigned n = 0; n < 3; n++) {
		push(s, 0);
		for (unsigned i = 1; i < 4; i++) {
			assert_received(s, i, CHANGED);
			assert_int_equal(s->nodes[i].n_received_again, 0);
			assert_int_equal(said(s, i, "changed"), CHANGED);
		}
		assert_int_equal(said(s, 0, "changed"), CHANGED);
		assert_int_equal(said(s, 0, "size"), SIZE);
		assert_int_equal(said(s, 0, "bytes"), 3 * CHANGED);
	}
	sim_free(s);
}

static void test_a_publisher_has_a_base_too(void **state)
{
	struct sim *s = world(3, POLICY_ALL, CHANGED);

	(void)state;
	push(s, 0);
	push(s, 1);
	assert_received(s, 0, CHANGED);
	assert_received(s, 2, CHANGED);
	push(s, 0);
	assert_received(s, 1, CHANGED);
	sim_free(s);
}

static bool loses_catch_up(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	(void)s, (void)from, (void)to;
	return strcmp(sim_text(message, "type"), "catch-up") != 0;
}

static void test_what_travels_is_all_that_any_of_them_lacks(void **state)
{
	struct sim *s = world(4, POLICY_QUORUM, CHANGED);

	(void)state;
	push(s, 0);
	sim_kill(s, 3);
	sim_run(s, 30 * S);
	push(s, 0);
	s->on_message = loses_catch_up; /* the next push finds it one version behind */
	sim_start(s, 3);
	sim_run(s, 30 * S);
	assert_int_equal(sim_serves(s, 3), 1);
	push(s, 0);
	for (unsigned i = 1; i < 4; i++)
		assert_received(s, i, 2 * CHANGED);
	assert_int_equal(said(s, 1, "changed"), CHANGED);
	assert_int_equal(said(s, 3, "changed"), 2 * CHANGED);
	assert_int_equal(said(s, 0, "changed"), 2 * CHANGED);
	sim_free(s);
}

static void test_who_was_away_fetches_what_changed_meanwhile(void **state)
{
	struct sim *s = world(3, POLICY_QUORUM, CHANGED);

	(void)state;
	push(s, 0);
	sim_kill(s, 2);
	sim_run(s, 30 * S);
	push(s, 0);
	push(s, 0);
	sim_start(s, 2); /* first it reads the version of its weightd */
	assert_true(sim_run_until(s, sim_is_converged, 120 * S));
	sim_run(s, 30 * S);
	assert_int_equal(sim_serves(s, 2), 3);
	assert_received(s, 2, 2 * CHANGED);
	sim_free(s);
}

static void test_a_version_of_another_size_shares_leaves(void **state)
{
	struct sim *s = world(3, POLICY_ALL, CHANGED);

	(void)state;
	push(s, 0);
	s->options.n_bytes = SIZE + 16 * MIB;
	push(s, 0);
	for (unsigned i = 1; i < 3; i++)
		assert_received(s, i, 16 * MIB + CHANGED);
	s->options.n_bytes = SIZE - 24 * MIB;
	push(s, 0);
	for (unsigned i = 1; i < 3; i++)
		assert_received(s, i, CHANGED);
	sim_free(s);
}

static void test_nothing_moves_where_nothing_changed(void **state)
{
	struct sim *s = world(3, POLICY_ALL, CHANGED);

	(void)state;
	push(s, 0);
	/* The same bytes once more. */
	s->n_contents--;
	push(s, 0);
	for (unsigned i = 1; i < 3; i++)
		assert_received(s, i, 0);
	assert_int_equal(said(s, 0, "changed"), 0);
	assert_int_equal(said(s, 0, "planned"), 0);
	assert_int_equal(said(s, 0, "bytes"), 0);
	sim_free(s);
}

static void test_a_lost_base_costs_a_whole_transfer(void **state)
{
	struct sim *s = world(3, POLICY_ALL, CHANGED);

	(void)state;
	push(s, 0);
	sim_lose_data(s, 1);
	push(s, 0);
	assert_true(s->nodes[1].n_received >= SIZE);
	push(s, 0);
	assert_received(s, 1, CHANGED);
	sim_free(s);
}

/* Its weightd restarted and numbers from 1 again: another version has the number of the base. */
static void test_a_base_that_lies_is_found_out_and_costs_a_resend(void **state)
{
	struct sim *s = world(3, POLICY_ALL, CHANGED);

	(void)state;
	push(s, 0);
	sim_lose_data(s, 1);
	s->nodes[1].last_number = 0;
	s->n_contents += 3;
	sim_add_version(&s->nodes[1], SIM_BUFFER, s->n_contents, SIZE);
	push(s, 0);
	assert_true(s->nodes[1].n_received > CHANGED);
	push(s, 0);
	assert_received(s, 1, CHANGED);
	sim_free(s);
}

static bool moves(struct sim *s)
{
	struct job *j;

	list_for_each(j, &s->nodes[2].jobs, link)
		if (j->kind == JOB_TCP && j->done)
			return true;
	return false;
}

static void test_an_epoch_that_broke_loses_nothing_of_the_base(void **state)
{
	struct sim *s = world(4, POLICY_ALL, 40 * MIB);

	(void)state;
	push(s, 0);
	begin(s, 0);
	assert_true(sim_run_until(s, moves, 60 * S));
	assert_true(sim_kill_job(s, 2, JOB_TCP));
	assert_true(sim_run_until(s, sim_ended, 60 * S));
	assert_string_equal(s->nodes[0].outcome, "committed");
	for (unsigned i = 1; i < 4; i++)
		assert_received(s, i, 40 * MIB + s->nodes[i].n_received_again);
	assert_int_equal(said(s, 0, "changed"), 40 * MIB);
	sim_free(s);
}

static void test_wrong_bytes_are_sent_again_and_nothing_else(void **state)
{
	struct sim *s = world(4, POLICY_ALL, CHANGED);

	(void)state;
	push(s, 0);
	s->nodes[1].n_corrupt = 1;
	push(s, 0);
	assert_received(s, 1, CHANGED + MIB);
	sim_free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_did_not_change_does_not_travel),
		cmocka_unit_test(test_a_publisher_has_a_base_too),
		cmocka_unit_test(test_what_travels_is_all_that_any_of_them_lacks),
		cmocka_unit_test(test_who_was_away_fetches_what_changed_meanwhile),
		cmocka_unit_test(test_a_version_of_another_size_shares_leaves),
		cmocka_unit_test(test_nothing_moves_where_nothing_changed),
		cmocka_unit_test(test_a_lost_base_costs_a_whole_transfer),
		cmocka_unit_test(test_a_base_that_lies_is_found_out_and_costs_a_resend),
		cmocka_unit_test(test_an_epoch_that_broke_loses_nothing_of_the_base),
		cmocka_unit_test(test_wrong_bytes_are_sent_again_and_nothing_else),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Gossip about replicas: it reaches all nodes, without a million messages for a thousand nodes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "server/sync/base/json_packet.h"
#include "server/sync/state/agent_state.h"
#include "sim.h"
#include "sim_jobs.h"

#define S SIM_SECOND
#define N 16 /* more than are notified at once */

static struct sim *world(enum policy policy)
{
	struct sim *s = sim_new(&(struct sim_options){.n_nodes = N, .policy = policy, .seed = 21});

	sim_run(s, 2 * S);
	return s;
}

static void push_and_wait(struct sim *s)
{
	char sync[SYNC_ID_SIZE];

	assert_int_equal(sim_push(s, 0, sync), 0);
	assert_true(sim_run_until(s, sim_ended, 120 * S));
	if (strcmp(s->nodes[0].outcome, "committed") != 0)
		fail_msg("%s: %s", s->nodes[0].outcome, s->nodes[0].why);
}

/* The number of the version that node `i` believes node `j` to have; 0: none. */
static uint64_t known(struct sim *s, unsigned i, unsigned j)
{
	cleanup(json_freep) json_t *rows = agent_replicas(s->nodes[i].agent, j < i ? j : j - 1);
	const json_t *row = json_array_get(rows, 0);

	return row ? sim_number(row, "number") : 0;
}

/* All but `except` have this one, and `except` has another. */
static void assert_known(struct sim *s, uint64_t number, unsigned except, uint64_t other)
{
	for (unsigned i = 0; i < N; i++) {
		for (unsigned j = 0; j < N; j++) {
			if (i != j && known(s, i, j) != (j == except ? other : number))
				fail_msg("node %u takes node %u to have number %ju", i, j,
					 (uintmax_t)known(s, i, j));
		}
	}
}

static bool count_replicas(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	(void)from, (void)to;
	*(unsigned *)s->userdata += strcmp(sim_text(message, "type"), "heads") == 0;
	return true;
}

static void test_all_know_of_all_what_they_have(void **state)
{
	struct sim *s = world(POLICY_QUORUM);
	unsigned n = 0;

	(void)state;
	s->on_message = count_replicas;
	s->userdata = &n;
	push_and_wait(s);
	sim_run(s, S);
	assert_known(s, 1, N, 0);
	assert_in_range(n, N - 1, (N - 1) * 9);
	s->nodes[5].sinks_fail = true;
	push_and_wait(s);
	sim_run(s, S);
	assert_known(s, 2, 5, 1);
	s->nodes[5].sinks_fail = false;
	assert_true(sim_run_until(s, sim_is_converged, 120 * S));
	sim_run(s, S);
	assert_known(s, 2, N, 0);
	sim_lose_data(s, 7);
	sim_run(s, S / 100);
	assert_known(s, 2, 7, 0);
	sim_free(s);
}

/* Its disk is full at the time of the commit, and it commits afterwards. */
static void test_who_publishes_after_the_end_is_heard(void **state)
{
	struct sim *s = world(POLICY_QUORUM);

	(void)state;
	s->nodes[5].saves_fail = true;
	push_and_wait(s);
	sim_run(s, S);
	assert_known(s, 1, 5, 0);
	s->nodes[5].saves_fail = false;
	sim_run(s, 30 * S);
	assert_known(s, 1, N, 0);
	sim_free(s);
}

/* The publisher's messages about replicas are lost. */
struct silence {
	bool says_all_have_it; /* they are replaced by a lie instead */
};

static bool silence(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	const struct silence *x = s->userdata;
	cleanup(json_freep) json_t *lie = NULL;

	if (strcmp(sim_text(message, "type"), "heads") != 0)
		return true;
	if (from != 0 || !x->says_all_have_it)
		return from != 0;
	lie = json_deep_copy(message);
	json_array_clear(json_object_get(json_array_get(json_object_get(lie, "heads"), 0), "lacks"));
	agent_on_message(s->nodes[to].agent, 0, lie);
	return false;
}

static bool last_serves(struct sim *s)
{
	return sim_serves(s, N - 1);
}

/* A push that does not reach the last node. */
static void push_past_the_last(struct sim *s)
{
	sim_cut(s, 0, N - 1, true);
	sim_run(s, 30 * S);
	push_and_wait(s);
}

static void test_who_does_not_see_the_publisher_hears_of_others(void **state)
{
	struct silence publisher = {0}, lies = {.says_all_have_it = true};
	struct sim *s;

	(void)state;
	s = world(POLICY_QUORUM);
	push_past_the_last(s);
	assert_true(sim_run_until(s, last_serves, 10 * S));
	sim_free(s);

	/* At random, independent of the publisher. */
	for (unsigned i = 0; i < 2; i++) {
		s = world(POLICY_QUORUM);
		s->on_message = silence;
		s->userdata = i ? &lies : &publisher;
		push_past_the_last(s);
		assert_true(sim_run_until(s, last_serves, 10 * S));
		sim_free(s);
	}
}

static void test_without_a_word_of_the_publisher_all_are_told_later(void **state)
{
	struct sim *s = world(POLICY_QUORUM);
	struct silence publisher = {0};
	unsigned n_unknown = 0;

	(void)state;
	s->on_message = silence;
	s->userdata = &publisher;
	push_and_wait(s);
	sim_run(s, S);
	for (unsigned i = 1; i < N; i++)
		for (unsigned j = 1; j < N; j++)
			n_unknown += i != j && !known(s, i, j);
	assert_true(n_unknown > N); /* each was notified by few */
	sim_run(s, 60 * S);
	for (unsigned i = 1; i < N; i++)
		for (unsigned j = 1; j < i; j++)
			assert_true(known(s, i, j) || known(s, j, i));
	/*
	 * Nodes that it notified did not notify it: a node that needs the version now is notified.
	 */
	sim_lose_data(s, 1);
	sim_run(s, S / 100);
	for (unsigned j = 2; j < N; j++)
		assert_int_equal(known(s, 1, j), 1);
	sim_free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_know_of_all_what_they_have),
		cmocka_unit_test(test_who_publishes_after_the_end_is_heard),
		cmocka_unit_test(test_who_does_not_see_the_publisher_hears_of_others),
		cmocka_unit_test(test_without_a_word_of_the_publisher_all_are_told_later),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

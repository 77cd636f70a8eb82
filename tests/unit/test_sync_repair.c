/* Repairs: their cost for a node from which others fetch a version. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "ipc/base/num.h"
#include "server/sync/participant/participant.h"
#include "sim.h"

#define S SIM_SECOND
#define MIB ((uint64_t)1 << 20)

/* Node 0 has pushed a version, and is the only one that can be asked for it. */
static struct sim *one_that_serves(uint64_t n_patch)
{
	struct sim *s = sim_new(&(struct sim_options){.n_nodes = 4,
						      .policy = POLICY_ALL,
						      .n_changed = n_patch ? MIB : 0,
						      .n_patch = n_patch,
						      .seed = 9});
	char sync[SYNC_ID_SIZE];

	sim_run(s, S);
	assert_int_equal(sim_push(s, 0, sync), 0);
	assert_true(sim_run_until(s, sim_is_converged, 60 * S));
	for (unsigned i = 1; i < 4; i++)
		for (unsigned j = 1; j < i; j++)
			sim_cut(s, i, j, true);
	sim_run(s, 30 * S);
	assert_int_equal(s->nodes[0].n_read, 1);
	return s;
}

static bool all_serve(struct sim *s)
{
	for (unsigned i = 0; i < 4; i++)
		if (!sim_serves(s, i))
			return false;
	return true;
}

static void lose(struct sim *s, unsigned node)
{
	sim_lose_data(s, node);
	assert_true(sim_run_until(s, all_serve, 60 * S));
}

static bool runs_nothing(struct sim *s)
{
	return list_empty(&s->nodes[0].jobs);
}

static void test_a_version_is_read_once_for_all_that_fetch_it(void **state)
{
	struct sim *s = one_that_serves(0);

	(void)state;
	for (unsigned i = 1; i < 4; i++)
		sim_lose_data(s, i);
	assert_true(sim_run_until(s, all_serve, 60 * S));
	assert_int_equal(s->nodes[0].n_read, 2);
	assert_true(sim_run_until(s, runs_nothing, 12 * S)); /* no further request */
	sim_free(s);
}

static void test_what_is_kept_of_a_push_is_not_read_again(void **state)
{
	struct sim *s = one_that_serves(MIB / 2);

	(void)state;
	for (unsigned i = 1; i < 4; i++)
		sim_lose_data(s, i);
	assert_true(sim_run_until(s, all_serve, 60 * S));
	assert_int_equal(s->nodes[0].n_read, 1);
	sim_free(s);
}

/* It may still be compared with the next push. */
static void test_a_repair_gives_back_what_is_kept_of_a_push(void **state)
{
	struct sim *s = one_that_serves(MIB / 2);
	char sync[SYNC_ID_SIZE];

	(void)state;
	lose(s, 1);
	sim_run(s, 30 * S);
	assert_int_equal(sim_push(s, 0, sync), 0);
	assert_true(sim_run_until(s, sim_is_converged, 60 * S));
	assert_int_equal(sim_serves(s, 3), 2);
	assert_true(s->nodes[2].n_patched && s->nodes[3].n_patched);
	sim_free(s);
}

static void test_what_came_wrong_is_read_anew_for_the_next(void **state)
{
	struct sim *s = one_that_serves(0);

	(void)state;
	s->nodes[1].n_corrupt = 1;
	lose(s, 1);
	lose(s, 2);
	assert_int_equal(s->nodes[0].n_read, 3);
	sim_free(s);
}

static void test_nothing_is_kept_of_what_somebody_published_over(void **state)
{
	struct sim *s = one_that_serves(0);

	(void)state;
	lose(s, 1);
	assert_false(runs_nothing(s));
	sim_replace(s, 0);
	assert_true(sim_run_until(s, runs_nothing, S));
	sim_free(s);
}

static void test_a_weightd_that_comes_back_is_looked_at_before_others_are_asked(void **state)
{
	struct sim *s = one_that_serves(0);
	uint64_t before = s->nodes[1].n_received;

	(void)state;
	s->nodes[1].sinks_fail = true;
	sim_lose_data(s, 1);
	sim_run(s, 20 * S);
	assert_false(sim_serves(s, 1));
	s->nodes[1].sinks_fail = false;
	sim_find_data(s, 1);
	sim_run(s, 20 * S);
	assert_true(sim_serves(s, 1));
	assert_int_equal(s->nodes[1].n_received, before);
	assert_int_equal(s->nodes[1].n_versions, 1); /* it was made once */
	sim_free(s);
}

static const char *state_at_n1(struct sim *s)
{
	static char state[16];
	json_t *replicas = agent_replicas(s->nodes[1].agent, AGENT_SELF);

	assert_int_equal(json_array_size(replicas), 1);
	strncpy(state, json_string_value(json_object_get(json_array_get(replicas, 0), "state")),
		sizeof(state) - 1);
	json_decref(replicas);
	return state;
}

static bool n1_is_sure(struct sim *s)
{
	return strcmp(state_at_n1(s), "serving") == 0;
}

/* n2 has an announcement of a replica of n1. */
static bool n1_claims_one(struct sim *s)
{
	json_t *replicas = agent_replicas(s->nodes[2].agent, 1);
	size_t n = json_array_size(replicas);

	json_decref(replicas);
	return n > 0;
}

static bool n2_serves(struct sim *s)
{
	return sim_serves(s, 2) == 1;
}

/* It has every byte, but only its record confirms that. */
static void test_who_starts_anew_is_ready_when_it_has_verified_what_it_has(void **state)
{
	struct sim *s = sim_new(&(struct sim_options){.n_nodes = 3, .policy = POLICY_ALL, .seed = 9});
	uint64_t received;
	char sync[SYNC_ID_SIZE];

	(void)state;
	sim_run(s, S);
	assert_int_equal(sim_push(s, 0, sync), 0);
	assert_true(sim_run_until(s, sim_is_converged, 60 * S));
	received = s->nodes[1].n_received;
	sim_kill(s, 1);
	s->nodes[1].jobs_hang = true;
	sim_start(s, 1);
	sim_run(s, 2 * S);
	sim_kill(s, 0); /* from here on n2 can request from no other node */
	sim_lose_data(s, 2);
	sim_run(s, 5 * S);
	assert_string_equal(state_at_n1(s), "unverified");
	assert_false(n1_claims_one(s));
	assert_int_equal(sim_serves(s, 2), 0);
	s->nodes[1].jobs_hang = false;
	assert_true(sim_run_until(s, n1_is_sure, 300 * S));
	assert_true(sim_run_until(s, n1_claims_one, S));
	assert_true(sim_run_until(s, n2_serves, 60 * S));
	assert_int_equal(s->nodes[1].n_received, received);
	sim_free(s);
}

static bool is_repaired(struct sim *s, unsigned node)
{
	const struct participant *d = participant_find_of_buffer(s->nodes[node].agent, SIM_BUFFER);

	return d && participant_is_repair(d) && d->state == PARTICIPANT_MOVING;
}

static bool n1_is_repaired(struct sim *s)
{
	return is_repaired(s, 1);
}

static void assert_refused(struct sim *s, unsigned node)
{
	static const char WORDS[] = "is under way, and a dry run does not end it";
	char sync[SYNC_ID_SIZE];

	assert_int_equal(sim_plan(s, node, sync), -EBUSY);
	if (!strstr(s->nodes[node].why, WORDS))
		fail_msg("'%s' is not '%s'", s->nodes[node].why, WORDS);
}

/*
 * At the node that serves it, at the receiver, and at a node that must prepare while it receives.
 */
static void test_a_dry_run_ends_no_repair(void **state)
{
	struct sim *s = sim_new(&(struct sim_options){
		.n_nodes = 3, .n_publishers = 2, .policy = POLICY_QUORUM, .seed = 9});
	char sync[SYNC_ID_SIZE];

	(void)state;
	sim_run(s, S);
	assert_int_equal(sim_push(s, 0, sync), 0);
	assert_true(sim_run_until(s, sim_is_converged, 60 * S));
	sim_cut(s, 1, 2, true);
	sim_run(s, 30 * S);
	s->nodes[1].rate = MIB;
	sim_lose_data(s, 1);
	assert_true(sim_run_until(s, n1_is_repaired, 30 * S));
	assert_refused(s, 0);
	assert_refused(s, 1);
	assert_true(is_repaired(s, 1));
	assert_true(sim_run_until(s, sim_is_converged, 120 * S));
	assert_int_equal(sim_serves(s, 1), 1);
	sim_free(s);
}

static bool n2_is_repaired(struct sim *s)
{
	return is_repaired(s, 2);
}

static bool n1_ended(struct sim *s)
{
	return s->nodes[1].end;
}

static void test_a_member_is_not_taken_out_of_a_repair_by_a_dry_run(void **state)
{
	struct sim *s = sim_new(&(struct sim_options){
		.n_nodes = 4, .n_publishers = 2, .policy = POLICY_EACH, .seed = 9});
	char sync[SYNC_ID_SIZE];

	(void)state;
	sim_run(s, S);
	assert_int_equal(sim_push(s, 0, sync), 0);
	assert_true(sim_run_until(s, sim_is_converged, 60 * S));
	sim_cut(s, 1, 2, true);
	sim_cut(s, 3, 2, true);
	sim_run(s, 30 * S);
	s->nodes[2].rate = MIB;
	sim_lose_data(s, 2);
	assert_true(sim_run_until(s, n2_is_repaired, 30 * S));
	sim_cut(s, 1, 2, false);
	sim_run(s, S);
	assert_int_equal(sim_plan(s, 1, sync), 0);
	s->nodes[1].n_versions--; /* it was only planned */
	assert_true(sim_run_until(s, n1_ended, 30 * S));
	if (strcmp(s->nodes[1].outcome, "planned") != 0)
		fail_msg("'%s': %s", s->nodes[1].outcome, s->nodes[1].why);
	assert_true(is_repaired(s, 2));
	assert_true(sim_run_until(s, sim_is_converged, 120 * S));
	sim_free(s);
}

/* A writer that ended before it published had made the buffer: the event of that may come late. */
static void test_a_buffer_that_a_user_removes_is_neither_served_nor_fetched(void **state)
{
	struct sim *s = one_that_serves(0);
	uint64_t received = s->nodes[1].n_received, version = s->nodes[1].last_number;

	(void)state;
	sim_remove(s, 1, 0);
	sim_run(s, S);
	assert_string_equal(state_at_n1(s), "serving");
	sim_cut(s, 1, 2, false);
	sim_remove(s, 1, version);
	sim_run(s, 60 * S);
	assert_string_equal(state_at_n1(s), "superseded");
	assert_false(n1_claims_one(s));
	assert_int_equal(s->nodes[1].n_received, received);
	sim_free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_version_is_read_once_for_all_that_fetch_it),
		cmocka_unit_test(test_what_is_kept_of_a_push_is_not_read_again),
		cmocka_unit_test(test_a_repair_gives_back_what_is_kept_of_a_push),
		cmocka_unit_test(test_what_came_wrong_is_read_anew_for_the_next),
		cmocka_unit_test(test_nothing_is_kept_of_what_somebody_published_over),
		cmocka_unit_test(test_a_weightd_that_comes_back_is_looked_at_before_others_are_asked),
		cmocka_unit_test(test_who_starts_anew_is_ready_when_it_has_verified_what_it_has),
		cmocka_unit_test(test_a_dry_run_ends_no_repair),
		cmocka_unit_test(test_a_member_is_not_taken_out_of_a_repair_by_a_dry_run),
		cmocka_unit_test(test_a_buffer_that_a_user_removes_is_neither_served_nor_fetched),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

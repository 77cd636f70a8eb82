/* Pushes in a simulated world while nodes die, hang, are cut off or fall silent. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "ipc/base/num.h"
#include "push_scene.h"
#include "scene.h"
#include "server/sync/base/json_packet.h"
#include "sim_trouble.h"

#define S SIM_SECOND

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define N_SEEDS 60
#else
#define N_SEEDS 300
#endif

/* --- Loss at each step -------------------------------------------------------------------------- */

static const char *const STEPS[] = {"prepare", "want",     "ready",    "open",
				    "opened",  "start",    "progress", "done",
				    "verify",  "verified", "commit",   "committed"};

struct loss {
	const char *type;
	unsigned victim;
	bool happened;
};

static bool kill_at(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	struct loss *l = s->userdata;
	const char *type = json_string_value(json_object_get(message, "type"));

	if (l->happened || strcmp(type, l->type) != 0 ||
	    (l->victim && from != l->victim && to != l->victim))
		return true;
	l->happened = true;
	sim_kill(s, l->victim);
	return true;
}

static void lose(unsigned victim, const char *type, enum policy policy)
{
	struct loss loss = {type, victim, false};
	struct sim *s = push_world(4, policy);
	char sync[SYNC_ID_SIZE];

	push_and_wait(s, "committed");
	sim_run(s, S);
	s->on_message = kill_at;
	s->userdata = &loss;
	s->nodes[1].rate = s->nodes[2].rate = 128 * MIB;
	assert_int_equal(sim_push(s, 0, sync), 0);
	sim_run(s, 60 * S);
	assert_true(loss.happened);
	assert_true(sim_is_idle(s));
	if (victim) {
		bool decided = s->n_decided == 2;

		assert_string_equal(s->nodes[0].outcome, decided ? "committed" : "failed");
		assert_true(policy == POLICY_ALL || decided);
		for (unsigned i = 1; i < 4; i++)
			if (i != victim)
				assert_int_equal(sim_serves(s, i), decided ? 2 : 1);
	}
	sim_start(s, victim);
	sim_run(s, 60 * S);
	push_and_wait(s, "committed");
	assert_all_serve(s, s->n_contents);
	sim_free(s);
}

static void test_a_member_lost_at_any_step_costs_nobody_else_a_version(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(STEPS); i++)
		for (enum policy p = POLICY_ALL; p <= POLICY_EACH; p++)
			lose(2, STEPS[i], p);
}

static void test_a_publisher_lost_at_any_step_leaves_the_old_or_the_new(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(STEPS); i++)
		for (enum policy p = POLICY_ALL; p <= POLICY_EACH; p++)
			lose(0, STEPS[i], p);
}

/*
 * The first save of a push is the publisher's decision; a member saves the fence and, later, the
 * version.
 */
static void test_a_death_around_any_save_is_mended_from_the_record(void **state)
{
	(void)state;
	for (unsigned victim = 0; victim < 2; victim++) {
		for (unsigned save = 1; save <= 2 - !victim; save++) {
			for (unsigned before = 0; before < 2; before++) {
				struct sim *s = push_world(3, POLICY_ALL);
				char sync[SYNC_ID_SIZE];

				push_and_wait(s, "committed");
				sim_run(s, S);
				s->nodes[victim].die_at_save = s->nodes[victim].n_saves + save;
				s->nodes[victim].die_before_it = before;
				assert_int_equal(sim_push(s, 0, sync), 0);
				sim_run(s, 30 * S);
				assert_null(s->nodes[victim].agent);
				sim_start(s, victim);
				sim_run(s, 30 * S);
				if (s->n_decided == 2)
					assert_all_serve(s, 2);
				else
					assert_int_equal(sim_serves(s, 1), 1);
				assert_int_equal(sim_serves(s, 1), sim_serves(s, 2));
				push_and_wait(s, "committed");
				assert_all_serve(s, 3);
				sim_free(s);
			}
		}
	}
}

static void test_a_record_that_cannot_be_written_commits_nothing(void **state)
{
	struct sim *s = push_world(3, POLICY_ALL);

	(void)state;
	push_and_wait(s, "committed");
	s->nodes[0].saves_fail = true;
	push_and_wait(s, "failed");
	assert_non_null(strstr(s->nodes[0].why, "the record of n0000 could not be written"));
	assert_int_equal(sim_serves(s, 1), 1);
	s->nodes[0].saves_fail = false;
	push_and_wait(s, "committed");
	assert_all_serve(s, 3);
	sim_free(s);
}

/* --- Bytes -------------------------------------------------------------------------------------- */

static bool some_bytes_are_there(struct sim *s)
{
	cleanup(json_freep) json_t *rows = agent_status(s->nodes[0].agent, NULL);
	json_t *row;
	size_t i;

	json_array_foreach(
		rows, i,
		row) if (strcmp(json_string_value(json_object_get(row, "node")), "n0003") == 0 &&
			 strcmp(json_string_value(json_object_get(row, "phase")), "bytes") == 0 &&
			 json_integer_value(json_object_get(row, "done")) >
				 20 * (json_int_t)MIB) return true;
	return false;
}

static struct sim *in_the_middle(enum policy policy)
{
	struct sim *s = push_world(4, policy);
	char sync[SYNC_ID_SIZE];

	for (unsigned i = 1; i < 4; i++)
		s->nodes[i].rate = 64 * MIB;
	assert_int_equal(sim_push(s, 0, sync), 0);
	assert_true(sim_run_until(s, some_bytes_are_there, 60 * S));
	return s;
}

static void test_an_engine_that_died_costs_only_what_was_not_there(void **state)
{
	struct sim *s = in_the_middle(POLICY_ALL);

	(void)state;
	assert_true(sim_kill_job(s, 2, JOB_TCP));
	assert_true(sim_run_until(s, sim_ended, 60 * S));
	assert_string_equal(s->nodes[0].outcome, "committed");
	assert_int_equal(sim_serves(s, 3), 1);
	for (unsigned i = 1; i < 4; i++) {
		/* The bytes on their way down the chain are ahead of those of the last node. */
		assert_true(s->nodes[i].n_received >= s->options.n_bytes);
		assert_true(s->nodes[i].n_received_again <= 8 * MIB);
	}
	sim_free(s);
}

static void test_a_lost_relay_is_left_out_and_the_rest_goes_on(void **state)
{
	struct sim *s = in_the_middle(POLICY_QUORUM);

	(void)state;
	sim_kill(s, 2);
	assert_true(sim_run_until(s, sim_ended, 60 * S));
	assert_string_equal(s->nodes[0].outcome, "committed");
	assert_true(s->nodes[3].n_received_again <= 8 * MIB);
	sim_start(s, 2);
	assert_all_serve(s, 1);
	sim_free(s);
}

static void test_a_cut_cable_ends_in_time_and_names_the_node(void **state)
{
	struct sim *s = in_the_middle(POLICY_ALL);
	uint64_t began = s->now_ns;

	(void)state;
	for (unsigned i = 0; i < 4; i++)
		if (i != 2)
			sim_cut(s, 2, i, true);
	assert_true(sim_run_until(s, sim_ended, 60 * S));
	assert_string_equal(s->nodes[0].outcome, "failed");
	assert_true(s->now_ns - began < 12 * S);
	assert_non_null(strstr(s->nodes[0].why,
			       "n0002 did not answer for 5 s while bytes moved (n0001 -> n0002, "));
	for (unsigned i = 0; i < 4; i++)
		if (i != 2)
			sim_cut(s, 2, i, false);
	sim_run(s, 20 * S);
	assert_true(sim_is_idle(s));
	push_and_wait(s, "committed");
	assert_all_serve(s, 2);
	sim_free(s);
}

static void test_a_link_that_works_for_nobody_is_gone_around(void **state)
{
	struct sim *s = in_the_middle(POLICY_QUORUM);

	(void)state;
	/* Neighbours in the chain; both are still connected to the publisher. */
	sim_cut(s, 1, 2, true);
	assert_true(sim_run_until(s, sim_ended, 100 * S));
	assert_string_equal(s->nodes[0].outcome, "committed");
	assert_int_equal(sim_serves(s, 1), 1);
	assert_int_equal(sim_serves(s, 3), 1);
	assert_int_equal(sim_serves(s, 2), 1);
	sim_free(s);
}

static void test_wrong_bytes_are_sent_again_and_three_times_is_enough(void **state)
{
	struct sim *s = push_world(4, POLICY_QUORUM);

	(void)state;
	s->nodes[2].n_corrupt = 2;
	push_and_wait(s, "committed");
	assert_int_equal(sim_serves(s, 2), 1);
	assert_int_equal(s->nodes[2].n_received, s->options.n_bytes + 2 * MIB);
	s->nodes[2].n_corrupt = 3;
	push_and_wait(s, "committed");
	assert_int_equal(sim_serves(s, 1), 2);
	assert_int_equal(sim_serves(s, 2), 1);
	s->nodes[2].n_corrupt = 0;
	assert_all_serve(s, 2);
	sim_free(s);
}

static void test_a_cancelled_push_leaves_the_old_version(void **state)
{
	struct sim *s = in_the_middle(POLICY_ALL);
	cleanup(json_freep) json_t *rows = agent_status(s->nodes[0].agent, NULL);
	const char *sync = json_string_value(json_object_get(json_array_get(rows, 0), "sync"));
	char why[WHY_SIZE];

	(void)state;
	assert_int_equal(agent_cancel(s->nodes[0].agent, sync, why), 0);
	assert_int_equal(agent_cancel(s->nodes[0].agent, sync, why), -ENOENT);
	sim_run(s, S);
	assert_true(sim_is_idle(s));
	assert_int_equal(sim_serves(s, 1), 0);
	assert_non_null(strstr(s->nodes[0].why, "was cancelled"));
	sim_free(s);
}

/* --- Deadlines ---------------------------------------------------------------------------------- */

static void test_jobs_that_hang_end_by_a_deadline(void **state)
{
	(void)state;
	for (unsigned who = 0; who < 2; who++) {
		struct sim *s = push_world(3, POLICY_ALL);
		uint64_t began;

		push_and_wait(s, "committed");
		s->nodes[who].jobs_hang = true;
		began = s->now_ns;
		push_and_wait(s, "failed");
		assert_true(s->now_ns - began < 25 * S);
		assert_int_equal(sim_serves(s, 2), 1);
		s->nodes[who].jobs_hang = false;
		sim_run(s, 200 * S);
		push_and_wait(s, "committed");
		assert_all_serve(s, s->n_contents);
		sim_free(s);
	}
}

static void test_an_engine_that_hangs_ends_by_a_deadline(void **state)
{
	struct sim *s = push_world(4, POLICY_ALL);

	(void)state;
	s->nodes[2].engines_hang = true;
	push_and_wait(s, "failed");
	assert_true(s->now_ns < 200 * S);
	s->nodes[2].engines_hang = false;
	push_and_wait(s, "committed");
	assert_all_serve(s, 2);
	sim_free(s);
}

static void test_a_silent_agent_ends_by_a_deadline(void **state)
{
	struct sim *s = push_world(3, POLICY_QUORUM);
	char sync[SYNC_ID_SIZE];

	(void)state;
	s->nodes[2].is_silent = true;
	assert_int_equal(sim_push(s, 0, sync), 0);
	assert_true(sim_run_until(s, sim_ended, 60 * S));
	assert_string_equal(s->nodes[0].outcome, "committed");
	assert_int_equal(sim_serves(s, 1), 1);
	s->nodes[2].is_silent = false;
	sim_run(s, 400 * S);
	assert_all_serve(s, 1);
	sim_free(s);
}

/* --- All kinds of trouble at once -------------------------------------------------------------- */

static void push_something(struct sim *s, unsigned node)
{
	char sync[SYNC_ID_SIZE];

	if (s->nodes[node].agent)
		(void)sim_push(s, node, sync);
}

static void play(uint64_t seed)
{
	struct sim *s = sim_new(&(struct sim_options){.n_nodes = 2 + (unsigned)(seed % 4),
						      .n_publishers = 2,
						      .policy = (enum policy)(seed % 3),
						      .n_changed = seed % 5 * 3 * MIB,
						      .as_frames = seed % 2,
						      .seed = seed});

	/* The world asserts that no node publishes an undecided or an older version. */
	sim_trouble(s, 60, push_something);
	sim_end_trouble(s);
	sim_run(s, 60 * S);
	assert_true(sim_run_until(s, sim_is_idle, 300 * S));
	push_and_wait(s, "committed");
	assert_all_serve(s, s->n_contents);
	sim_free(s);
}

static void test_random_trouble_ends_with_the_newest_everywhere(void **state)
{
	(void)state;
	sim_play(N_SEEDS, play);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_member_lost_at_any_step_costs_nobody_else_a_version),
		cmocka_unit_test(test_a_publisher_lost_at_any_step_leaves_the_old_or_the_new),
		cmocka_unit_test(test_a_death_around_any_save_is_mended_from_the_record),
		cmocka_unit_test(test_a_record_that_cannot_be_written_commits_nothing),
		cmocka_unit_test(test_an_engine_that_died_costs_only_what_was_not_there),
		cmocka_unit_test(test_a_lost_relay_is_left_out_and_the_rest_goes_on),
		cmocka_unit_test(test_a_cut_cable_ends_in_time_and_names_the_node),
		cmocka_unit_test(test_a_link_that_works_for_nobody_is_gone_around),
		cmocka_unit_test(test_wrong_bytes_are_sent_again_and_three_times_is_enough),
		cmocka_unit_test(test_a_cancelled_push_leaves_the_old_version),
		cmocka_unit_test(test_jobs_that_hang_end_by_a_deadline),
		cmocka_unit_test(test_an_engine_that_hangs_ends_by_a_deadline),
		cmocka_unit_test(test_a_silent_agent_ends_by_a_deadline),
		cmocka_unit_test_teardown(test_random_trouble_ends_with_the_newest_everywhere,
					  scene_tell),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

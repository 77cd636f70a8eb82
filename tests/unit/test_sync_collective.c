/*
 * Averages in a simulated world: the versions that nodes serve while some die or hang. The world
 * itself asserts that no node serves an undecided or incomplete version.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collective_scene.h"
#include "ipc/base/num.h"
#include "server/sync/base/json_packet.h"
#include "server/sync/state/group.h"
#include "sim_jobs.h"
#include "tests/unit/long_form.h"

#define S SIM_SECOND
#define N_STEPS ARRAY_LEN(STEPS)

/* All messages between nodes, in the order of their first appearance. */
static const char *const STEPS[] = {"join", "ready",  "open",     "opened", "start",    "progress",
				    "done", "verify", "verified", "commit", "committed"};

/* --- Averages ---------------------------------------------------------------------------------- */

static json_int_t number(const json_t *row, const char *key)
{
	return json_integer_value(json_object_get(row, key));
}

static void test_all_come_to_the_mean_of_what_each_had(void **state)
{
	(void)state;
	for (unsigned n = 2; n <= 7; n++) {
		struct sim *s = scene_world(n, POLICY_ALL);
		const json_t *end;
		uint64_t had[16];

		scene_note(s, had);
		average_and_wait(s, "committed");
		end = s->nodes[0].end;
		assert_mean_of(s, had, (1u << n) - 1);
		for (unsigned i = 0; i < n; i++)
			assert_int_equal(sim_serves(s, i), sim_serves(s, 0));
		assert_true(number(end, "bytes") > 0);
		assert_int_equal(number(end, "planned"), number(end, "bytes"));
		assert_int_equal(number(end, "kernel"), number(end, "bytes"));
		assert_well(s);
		sim_free(s);
	}
}

static void test_it_is_pushed_fetched_and_averaged_like_any_version(void **state)
{
	struct sim *s = scene_world(3, POLICY_ALL);
	char sync[SYNC_ID_SIZE];
	uint64_t mean;

	(void)state;
	average_and_wait(s, "committed");
	mean = sim_serves(s, 0);
	average_and_wait(s, "committed");
	assert_int_not_equal(sim_serves(s, 0), mean);
	sim_kill(s, 2);
	sim_lose_data(s, 2);
	sim_start(s, 2);
	assert_converges(s);
	assert_int_equal(sim_push(s, 1, sync), 0);
	sim_run(s, 30 * S);
	assert_converges(s);
	assert_null(sim_average_of(s, sim_serves(s, 0)));
	assert_well(s);
	sim_free(s);
}

/* --- Policies ---------------------------------------------------------------------------------- */

static void test_who_is_away_is_left_out_or_ends_it(void **state)
{
	(void)state;
	for (enum policy p = POLICY_ALL; p <= POLICY_EACH; p++) {
		struct sim *s = scene_world(4, p);
		uint64_t had[16];

		sim_kill(s, 2);
		scene_note(s, had);
		average_and_wait(s, p == POLICY_ALL ? "failed" : "committed");
		if (p == POLICY_ALL) {
			assert_non_null(strstr(s->nodes[0].why, "n0002 is not connected"));
			assert_untouched(s, had);
		} else {
			assert_mean_of(s, had, 0xb);
		}
		sim_start(s, 2);
		if (p != POLICY_ALL)
			assert_converges(s);
		assert_well(s);
		sim_free(s);
	}
}

static void test_one_alone_makes_nothing_together(void **state)
{
	(void)state;
	for (enum policy p = POLICY_ALL; p <= POLICY_EACH; p++) {
		struct sim *s = scene_world(2, p);
		uint64_t had[16];

		scene_note(s, had);
		s->nodes[1].sinks_fail = true;
		average_and_wait(s, "failed");
		assert_non_null(strstr(s->nodes[0].why,
				       "n0001 refused: host needs 64 MiB more than there are"));
		assert_untouched(s, had);
		s->nodes[1].sinks_fail = false;
		assert_well(s);
		sim_free(s);
	}
}

/* Without another node: only this one has both layouts. */
static void test_who_has_another_layout_says_what_differs(void **state)
{
	(void)state;
	for (enum policy p = POLICY_ALL; p <= POLICY_EACH; p++) {
		struct sim *s = scene_world(4, p);
		uint64_t had[16];

		s->nodes[2].layout = 7;
		scene_note(s, had);
		average_and_wait(s, p == POLICY_ALL ? "failed" : "committed");
		if (p == POLICY_ALL) {
			assert_non_null(
				strstr(s->nodes[0].why,
				       "n0002 refused: its tensors are not those of llama on "
				       "n0000: tensor 'w' is F32 on n0002, and BF16 on n0000"));
			assert_untouched(s, had);
		} else {
			assert_mean_of(s, had, 0xb);
		}
		s->nodes[2].layout = 0;
		assert_well(s);
		sim_free(s);
	}
}

static bool cut_who_differs(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	(void)from, (void)to;
	if (strcmp(sim_text(message, "type"), "differs") != 0)
		return true;
	sim_cut(s, from, to, true);
	return false;
}

/* It must not wait longer than necessary. */
static void test_a_layout_that_never_comes_ends_it_in_time(void **state)
{
	struct sim *s = scene_world(3, POLICY_QUORUM);
	uint64_t had[16];

	(void)state;
	s->nodes[2].layout = 7;
	s->on_message = cut_who_differs;
	scene_note(s, had);
	average_and_wait(s, "committed");
	assert_mean_of(s, had, 0x3);
	s->on_message = NULL;
	sim_cut(s, 0, 2, false);
	s->nodes[2].layout = 0;
	assert_converges(s);
	assert_well(s);
	sim_free(s);
}

static void test_who_has_other_tensors_is_named_and_left_out(void **state)
{
	(void)state;
	for (enum policy p = POLICY_ALL; p <= POLICY_EACH; p++) {
		struct sim *s = scene_world(4, p);
		uint64_t had[16];

		scene_note(s, had);
		for (unsigned i = 0; i < 4; i++)
			s->nodes[i].others = i == 3 ? 5 : 4;
		average_and_wait(s, p == POLICY_ALL ? "failed" : "committed");
		if (p == POLICY_ALL)
			assert_non_null(strstr(s->nodes[0].why, "n0003 does not fit to n0000"));
		else
			assert_mean_of(s, had, 7);
		s->nodes[3].others = 4;
		assert_well(s);
		sim_free(s);
	}
}

/* --- Loss at each step --------------------------------------------------------------------------- */

/*
 * From a loss to the end: no phase has a longer deadline than PREPARE, in which a member may have
 * to wait for its weightd three times, and a node that is lost in a phase breaks at most one epoch.
 */
#define LONGEST (60 * S)

static void lose(struct loss l, enum policy policy)
{
	struct sim *s = scene_world(4, policy);
	char sync[SYNC_ID_SIZE], outcome[16] = "";
	uint64_t had[16];

	scene_note(s, had);
	s->on_message = strike_at;
	s->userdata = &l;
	s->nodes[1].rate = s->nodes[2].rate = 128 * MIB;
	scene_begin(s, sync);
	if (l.blow == BLOW_KILL && !l.victim)
		sim_run(s, 200 * S);
	else
		assert_true(sim_run_until(s, sim_ended, LONGEST));
	assert_true(l.at_ns);
	/* Repairs will overwrite it. */
	snprintf(outcome, sizeof(outcome), "%s", s->nodes[0].outcome);
	sim_run(s, 200 * S); /* members may wait for longer than the coordinator */
	if (l.blow != BLOW_HANG)
		assert_true(sim_run_until(s, sim_is_idle,
					  20 * S)); /* a source of repairs stays for some seconds */
	if (!s->n_decided)
		assert_untouched(s, had);
	if (l.victim && policy != POLICY_ALL)
		assert_int_equal(s->n_decided, 1);
	if (outcome[0])
		assert_string_equal(outcome, s->n_decided ? "committed" : "failed");
	for (unsigned i = 0; i < 4; i++)
		if (i != l.victim && l.victim)
			assert_int_equal(sim_serves(s, i), s->n_decided ? s->decided[0] : had[i]);
	s->on_message = NULL;
	recover(s, l.victim);
	assert_well(s);
	sim_free(s);
}

static void lose_at_each_step(unsigned victim)
{
	for (enum blow b = 0; b < N_BLOWS; b++)
		for (size_t i = 0; i < N_STEPS; i++)
			for (enum policy p = POLICY_ALL; p <= POLICY_EACH; p++) {
				snprintf(scene, sizeof(scene), "%s at %s, policy %s", BLOWS[b],
					 STEPS[i], policy_name(p));
				if (is_some_pair(b + i, p, 3))
					lose((struct loss){STEPS[i], b, victim, 0}, p);
			}
	scene[0] = '\0';
}

static void test_a_member_lost_at_any_step_costs_nobody_else_a_version(void **state)
{
	(void)state;
	lose_at_each_step(2);
}

static void test_a_coordinator_lost_at_any_step_leaves_the_old_or_the_new(void **state)
{
	(void)state;
	lose_at_each_step(0);
}

/*
 * A coordinator saves its decision; a member saves the decision, and then that it serves the
 * version.
 */
static void test_a_death_around_any_save_is_mended_from_the_record(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 2 * 3 * 2; i++) {
		unsigned victim = i % 2, save = 1 + i / 2 % 3, before = i / 6;
		struct sim *s = scene_world(4, POLICY_ALL);
		struct sim_node *n = &s->nodes[victim];
		char sync[SYNC_ID_SIZE];
		uint64_t had[16];

		snprintf(scene, sizeof(scene), "n%04u dies %s save %u", victim,
			 before ? "before" : "after", save);
		scene_note(s, had);
		n->die_at_save = n->n_saves + save;
		n->die_before_it = before;
		scene_begin(s, sync);
		sim_run(s, 60 * S);
		n->die_at_save = 0;
		if (!n->agent)
			sim_start(s, victim);
		sim_run(s, 60 * S);
		if (!s->n_decided)
			assert_untouched(s, had);
		assert_int_equal(sim_serves(s, 2) == had[2], sim_serves(s, 3) == had[3]);
		assert_well(s);
		sim_free(s);
	}
	scene[0] = '\0';
}

static void test_a_record_that_cannot_be_written_commits_nothing(void **state)
{
	struct sim *s = scene_world(3, POLICY_ALL);
	uint64_t had[16];

	(void)state;
	scene_note(s, had);
	s->nodes[0].saves_fail = true;
	average_and_wait(s, "failed");
	assert_non_null(strstr(s->nodes[0].why, "the record of n0000 could not be written"));
	assert_untouched(s, had);
	s->nodes[0].saves_fail = false;
	assert_well(s);
	sim_free(s);
}

/* --- Engines ------------------------------------------------------------------------------------- */

static bool some_bytes_are_there(struct sim *s)
{
	cleanup(json_freep) json_t *rows = agent_status(s->nodes[0].agent, NULL);
	json_t *row;
	size_t i;

	json_array_foreach(rows, i, row) if (number(row, "done") > 20 * (json_int_t)MIB) return true;
	return false;
}

static struct sim *in_the_middle(unsigned n, enum policy policy)
{
	struct sim *s = scene_world(n, policy);
	char sync[SYNC_ID_SIZE];

	for (unsigned i = 0; i < n; i++)
		s->nodes[i].rate = 32 * MIB;
	scene_begin(s, sync);
	assert_true(sim_run_until(s, some_bytes_are_there, 60 * S));
	return s;
}

static void test_an_engine_that_died_costs_an_epoch(void **state)
{
	(void)state;
	for (unsigned victim = 0; victim < 4; victim++) {
		struct sim *s = in_the_middle(4, POLICY_ALL);
		uint64_t began = s->now_ns;

		assert_true(sim_kill_job(s, victim, JOB_GLOO));
		assert_ends(s, "committed", 20 * S);
		assert_true(s->now_ns - began < 6 * S);
		assert_int_equal(number(s->nodes[0].end, "planned"),
				 number(s->nodes[0].end, "bytes"));
		assert_well(s);
		sim_free(s);
	}
}

/* All its peers name a silent node, and a node that broke two epochs is left out. */
static void test_an_engine_that_hangs_is_left_out_or_ends_it(void **state)
{
	(void)state;
	for (enum policy p = POLICY_ALL; p <= POLICY_EACH; p++) {
		struct sim *s = in_the_middle(5, p);
		uint64_t began = s->now_ns;

		s->nodes[2].engines_hang = true;
		assert_ends(s, p == POLICY_ALL ? "failed" : "committed", 60 * S);
		assert_true(s->now_ns - began < 40 * S);
		if (p == POLICY_ALL)
			assert_non_null(strstr(s->nodes[0].why, "n0002"));
		else
			assert_int_equal(sim_average_of(s, sim_serves(s, 0))->n_terms, 4);
		s->nodes[2].engines_hang = false;
		assert_well(s);
		sim_free(s);
	}
}

static void test_a_cut_cable_ends_in_time_and_names_the_node(void **state)
{
	(void)state;
	for (enum policy p = POLICY_ALL; p <= POLICY_EACH; p++) {
		struct sim *s = in_the_middle(4, p);
		uint64_t began = s->now_ns;

		for (unsigned i = 0; i < 4; i++)
			if (i != 2)
				sim_cut(s, 2, i, true);
		assert_ends(s, p == POLICY_ALL ? "failed" : "committed", 60 * S);
		assert_true(s->now_ns - began < 20 * S);
		if (p == POLICY_ALL)
			assert_non_null(strstr(s->nodes[0].why, "n0002 did not answer for 5 s"));
		for (unsigned i = 0; i < 4; i++)
			if (i != 2)
				sim_cut(s, 2, i, false);
		if (p != POLICY_ALL)
			assert_converges(s);
		assert_well(s);
		sim_free(s);
	}
}

static void test_an_engine_that_does_not_open_is_told_apart(void **state)
{
	struct loss l = {.type = "open", .blow = BLOW_HANG, .victim = 2};
	struct sim *s = scene_world(4, POLICY_ALL);

	(void)state;
	s->on_message = strike_at;
	s->userdata = &l;
	average_and_wait(s, "failed");
	assert_non_null(strstr(s->nodes[0].why, "the engine of n0002 did not open for 10 s"));
	sim_free(s);
}

/* Both are well, and connected to the coordinator: one of them must be excluded. */
static void test_two_that_cannot_reach_each_other_do_not_end_it(void **state)
{
	struct sim *s = in_the_middle(5, POLICY_QUORUM);

	(void)state;
	sim_cut(s, 1, 2, true);
	assert_ends(s, "committed", 100 * S);
	assert_int_equal(sim_average_of(s, sim_serves(s, 0))->n_terms, 4);
	sim_cut(s, 1, 2, false);
	assert_converges(s);
	assert_well(s);
	sim_free(s);
}

/* --- Operators ----------------------------------------------------------------------------------- */

static bool cancel_at(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	struct loss *l = s->userdata;
	char why[WHY_SIZE];

	(void)from, (void)to;
	if (l->at_ns || strcmp(sim_text(message, "type"), l->type) != 0)
		return true;
	l->at_ns = s->now_ns;
	assert_int_equal(agent_cancel(s->nodes[0].agent, sim_text(message, "sync"), why),
			 strcmp(l->type, "commit") == 0 ? -EALREADY : 0);
	return true;
}

struct late {
	json_t *done; /* n1's; delivered after n2's report about n1 */
	uint64_t broken_ns;
};

static bool accuse(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	struct late *l = s->userdata;
	cleanup(json_freep) json_t *broken = NULL;

	if (to || l->broken_ns || strcmp(sim_text(message, "type"), "done") != 0)
		return true;
	if (from == 1) {
		l->done = json_incref((json_t *)message);
		return false;
	}
	broken = json_pack("{s:s, s:O, s:O, s:s, s:s, s:s}", "type", "broken", "sync",
			   json_object_get(message, "sync"), "epoch",
			   json_object_get(message, "epoch"), "code", "failed", "why",
			   "it is silent", "who", "n0001");
	l->broken_ns = s->now_ns;
	agent_on_message(s->nodes[0].agent, 1, broken);
	if (l->done)
		agent_on_message(s->nodes[0].agent, 0, l->done);
	return !l->done;
}

/*
 * A node with the result sends nothing more when others report a broken epoch, and is not waited
 * for.
 */
static void test_who_is_done_is_not_waited_for_where_others_broke(void **state)
{
	struct sim *s = scene_world(3, POLICY_ALL);
	struct late l = {0};

	(void)state;
	s->userdata = &l;
	s->on_message = accuse;
	average_and_wait(s, "committed");
	assert_non_null(l.done);
	assert_true(s->now_ns - l.broken_ns < 4 * S); /* not as long as a node may be silent */
	json_decref(l.done);
	s->on_message = NULL;
	assert_well(s);
	sim_free(s);
}

static void test_a_cancelled_average_leaves_what_there_was(void **state)
{
	(void)state;
	for (size_t i = 0; i < N_STEPS - 1; i++) {
		struct loss l = {.type = STEPS[i]};
		struct sim *s = scene_world(4, POLICY_ALL);
		uint64_t had[16];
		bool decided = strcmp(STEPS[i], "commit") == 0;

		snprintf(scene, sizeof(scene), "%s", STEPS[i]);
		scene_note(s, had);
		s->on_message = cancel_at;
		s->userdata = &l;
		average_and_wait(s, decided ? "committed" : "failed");
		sim_run(s, S);
		assert_true(sim_is_idle(s));
		if (!decided) {
			assert_untouched(s, had);
			assert_non_null(strstr(s->nodes[0].why, "was cancelled"));
		}
		s->on_message = NULL;
		assert_well(s);
		sim_free(s);
	}
	scene[0] = '\0';
}

static bool both_ended(struct sim *s)
{
	return s->nodes[0].end && s->nodes[1].end;
}

/*
 * A node can take part in one sync of a buffer at a time: so both fail, and a later one succeeds.
 */
static void test_two_coordinators_at_once_do_not_hang(void **state)
{
	(void)state;
	for (enum policy p = POLICY_ALL; p <= POLICY_EACH; p++) {
		struct sim *s = scene_world(4, p);
		char sync[SYNC_ID_SIZE];

		scene_begin(s, sync);
		assert_int_equal(sim_average(s, 1, SIM_BUFFER, sync), 0);
		assert_true(sim_run_until(s, both_ended, LONGEST));
		assert_well(s);
		sim_free(s);
	}
}

static void name_buffer(char ret[16], unsigned i)
{
	snprintf(ret, 16, "b%u", i);
}

static bool many_are_served(struct sim *s)
{
	const unsigned *n_buffers = s->userdata;
	char buffer[16];

	for (unsigned b = 0; b < *n_buffers; b++) {
		name_buffer(buffer, b);
		for (unsigned i = 0; i < s->options.n_nodes; i++)
			if (!sim_average_of(s, sim_serves_of(s, i, buffer)))
				return false;
	}
	return true;
}

/* Each of `n_coordinators` nodes starts `n_each`, all at once. */
static void average_many(unsigned n_each, unsigned n_coordinators)
{
	struct sim *s = scene_world(n_coordinators < 4 ? 4 : n_coordinators, POLICY_ALL);
	unsigned n_buffers = n_each * n_coordinators;
	uint64_t began = s->now_ns;
	char sync[SYNC_ID_SIZE], buffer[16];

	s->group.n_publishers = n_coordinators;
	for (unsigned b = 0; b < n_buffers; b++) {
		name_buffer(buffer, b);
		for (unsigned i = 0; i < s->options.n_nodes; i++)
			assert_true(sim_train(s, i, buffer));
		assert_int_equal(sim_average(s, b % n_coordinators, buffer, sync), 0);
	}
	s->userdata = &n_buffers;
	assert_true(sim_run_until(s, many_are_served, 60 * S));
	print_message("%u averages at once took %.1f virtual s\n", n_buffers,
		      (double)(s->now_ns - began) / 1e9);
	sim_run(s, 10 * S);
	assert_true(sim_is_idle(s));
	sim_free(s);
}

/* More than a node takes part in at a time. */
static void test_many_averages_at_once_take_turns(void **state)
{
	(void)state;
	average_many(24, 1);
}

/* The sink of the last one, which has its turn. */
static struct job *sink_of_last(const struct sim *s)
{
	struct job *j;

	list_for_each(j, &s->nodes[0].jobs, link)
		if (j->kind == JOB_SINK && strcmp(j->buffer, "b8") == 0)
			return j;
	return NULL;
}

static bool last_has_its_turn(struct sim *s)
{
	return sink_of_last(s) != NULL;
}

static bool last_has_ended(struct sim *s)
{
	return strstr(s->nodes[0].why, ": b8") != NULL;
}

/* It ends after any time until its turn, and after anything that it does then. */
static void test_who_waits_for_its_turn_to_coordinate_ends_in_time(void **state)
{
	struct sim *s = sim_new(&(struct sim_options){.n_nodes = 4, .n_bytes = 16384 * MIB});
	char sync[SYNC_ID_SIZE], buffer[16];

	(void)state;
	sim_run(s, S);
	for (unsigned b = 0; b < 9; b++) {
		name_buffer(buffer, b);
		for (unsigned i = 0; i < s->options.n_nodes; i++) {
			s->nodes[i].rate = 1024 * MIB;
			assert_true(sim_train(s, i, buffer));
		}
		assert_int_equal(sim_average(s, 0, buffer, sync), 0);
	}
	assert_true(sim_run_until(s, last_has_its_turn, LONGEST));
	sink_of_last(s)->hangs = true;
	assert_true(sim_run_until(s, last_has_ended, 2 * LONGEST));
	assert_non_null(strstr(s->nodes[0].why,
			       "the local weightd of n0000 did not answer in time (prepare)"));
	sim_free(s);
}

/* Each would hold the turns that the others wait for, unless it has its own turns on every node. */
static void test_averages_of_many_coordinators_do_not_wait_for_each_other(void **state)
{
	(void)state;
	sim_require_files(FILES_MANY);
	average_many(24, 2);
	average_many(is_long_form() ? 10 : 3, 12);
}

/* --- Operations without bytes ------------------------------------------------------------------ */

static bool count_stops(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	unsigned *n = s->userdata;

	(void)from, (void)to;
	*n += strcmp(sim_text(message, "type"), "stop") == 0;
	return true;
}

static void digest_on(struct sim *s, unsigned so_far)
{
	struct job *j;

	for (unsigned i = 0; i < s->options.n_nodes; i++)
		list_for_each(j, &s->nodes[i].jobs, link) {
			cleanup(json_freep)
				json_t *progress = json_pack("{s:s, s:i, s:i}", "op", "progress",
							     "done", 0, "sent", (int)so_far);

			if (j->kind == JOB_GLOO)
				agent_on_job(s->nodes[i].agent, j->owner, progress, NULL, 0);
		}
}

static void test_who_digests_for_longer_than_a_stall_is_waited_for(void **state)
{
	struct sim *s = scene_world(3, POLICY_ALL);
	unsigned n_stops = 0;
	char sync[SYNC_ID_SIZE];

	(void)state;
	for (unsigned i = 0; i < 3; i++)
		s->nodes[i].engines_hang = true;
	s->on_message = count_stops;
	s->userdata = &n_stops;
	scene_begin(s, sync);
	for (unsigned i = 1; i <= 40; i++) {
		sim_run(s, S);
		digest_on(s, i);
	}
	assert_int_equal(n_stops, 0);
	sim_run(s, 40 * S);
	assert_true(n_stops > 0);
	sim_free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_come_to_the_mean_of_what_each_had),
		cmocka_unit_test(test_it_is_pushed_fetched_and_averaged_like_any_version),
		cmocka_unit_test(test_who_is_away_is_left_out_or_ends_it),
		cmocka_unit_test(test_one_alone_makes_nothing_together),
		cmocka_unit_test(test_who_has_another_layout_says_what_differs),
		cmocka_unit_test(test_a_layout_that_never_comes_ends_it_in_time),
		cmocka_unit_test(test_who_has_other_tensors_is_named_and_left_out),
		cmocka_unit_test_teardown(test_a_member_lost_at_any_step_costs_nobody_else_a_version,
					  scene_tell),
		cmocka_unit_test_teardown(
			test_a_coordinator_lost_at_any_step_leaves_the_old_or_the_new, scene_tell),
		cmocka_unit_test_teardown(test_a_death_around_any_save_is_mended_from_the_record,
					  scene_tell),
		cmocka_unit_test(test_a_record_that_cannot_be_written_commits_nothing),
		cmocka_unit_test(test_an_engine_that_died_costs_an_epoch),
		cmocka_unit_test(test_an_engine_that_hangs_is_left_out_or_ends_it),
		cmocka_unit_test(test_a_cut_cable_ends_in_time_and_names_the_node),
		cmocka_unit_test(test_an_engine_that_does_not_open_is_told_apart),
		cmocka_unit_test(test_two_that_cannot_reach_each_other_do_not_end_it),
		cmocka_unit_test(test_who_is_done_is_not_waited_for_where_others_broke),
		cmocka_unit_test_teardown(test_a_cancelled_average_leaves_what_there_was, scene_tell),
		cmocka_unit_test(test_two_coordinators_at_once_do_not_hang),
		cmocka_unit_test(test_many_averages_at_once_take_turns),
		cmocka_unit_test(test_who_waits_for_its_turn_to_coordinate_ends_in_time),
		cmocka_unit_test(test_averages_of_many_coordinators_do_not_wait_for_each_other),
		cmocka_unit_test(test_who_digests_for_longer_than_a_stall_is_waited_for),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * Versions sent as patches: agents in a simulated world. Members missed some versions, lost the
 * base of a patch, or receive corrupted bytes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "ipc/base/num.h"
#include "server/sync/state/agent_state.h"
#include "sim_jobs.h"

#define S SIM_SECOND
#define SIZE (64 * MIB)
#define CHANGED (40 * MIB)
#define PATCH (256 * KIB)

static struct sim *world_of(struct sim_options o)
{
	struct sim *s;

	o.n_bytes = SIZE;
	o.n_changed = o.n_changed ? o.n_changed : CHANGED;
	o.n_patch = o.n_patch ? o.n_patch : PATCH;
	o.seed = o.n_nodes + 23;
	s = sim_new(&o);
	sim_run(s, S); /* they connect and exchange heads */
	return s;
}

static struct sim *world(unsigned n, enum policy policy)
{
	return world_of((struct sim_options){.n_nodes = n, .n_publishers = 2, .policy = policy});
}

static void begin(struct sim *s, unsigned node)
{
	char sync[SYNC_ID_SIZE];

	for (unsigned i = 0; i < s->options.n_nodes; i++) {
		s->nodes[i].n_received = s->nodes[i].n_received_again = s->nodes[i].n_patched = 0;
		sim_forget_end(s, i);
	}
	assert_int_equal(sim_push(s, node, sync), 0);
}

static void finish(struct sim *s, unsigned node)
{
	assert_true(sim_run_until(s, sim_ended, 300 * S)); /* at node 0, which is in all of them */
	if (strcmp(s->nodes[0].outcome, "committed") != 0)
		fail_msg("%s", s->nodes[0].why);
	assert_true(sim_run_until(s, sim_is_converged, 120 * S));
	assert_int_equal(sim_serves(s, node), s->n_contents);
}

static void push(struct sim *s, unsigned node)
{
	begin(s, node);
	finish(s, node);
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

static void assert_by(struct sim *s, unsigned node, const char *way)
{
	assert_string_equal(sim_text(s->nodes[node].end, "by"), way);
}

static unsigned n_sources(struct sim *s, unsigned node)
{
	struct job *j;
	unsigned n = 0;

	list_for_each(j, &s->nodes[node].jobs, link)
		n += j->kind == JOB_SOURCE;
	return n;
}

static void test_a_patch_travels_where_that_is_less(void **state)
{
	struct sim *s = world(4, POLICY_ALL);

	(void)state;
	push(s, 0);
	assert_by(s, 0, "full");
	for (unsigned n = 0; n < 12; n++) { /* more of them than are kept */
		push(s, 0);
		for (unsigned i = 1; i < 4; i++) {
			assert_received(s, i, PATCH);
			assert_int_equal(s->nodes[i].n_patched, 1);
			assert_by(s, i, "patch");
			assert_int_equal(said(s, i, "patch"), PATCH);
		}
		assert_by(s, 0, "patch");
		assert_true(said(s, 0, "changed") > PATCH);
		assert_int_equal(said(s, 0, "differ"), PATCH / 2);
		assert_true(said(s, 0, "bytes") == 3 * PATCH && said(s, 0, "kernel") == 3 * PATCH);
		assert_int_equal(n_sources(s, 0), 1);
	}
	sim_free(s);
}

static void test_leaves_travel_where_a_patch_is_hardly_less(void **state)
{
	struct sim *s = world_of((struct sim_options){
		.n_nodes = 3, .policy = POLICY_ALL, .n_changed = 3 * MIB, .n_patch = 2 * MIB});

	(void)state;
	push(s, 0);
	push(s, 0);
	assert_by(s, 0, "leaves");
	assert_received(s, 1, 3 * MIB);
	assert_received(s, 2, 3 * MIB);
	sim_free(s);
}

static void test_nobody_keeps_anything_where_patches_are_not_wanted(void **state)
{
	struct sim *s = world(3, POLICY_ALL);

	(void)state;
	s->nodes[0].config.patches = false;
	push(s, 0);
	assert_int_equal(n_sources(s, 0), 0);
	push(s, 0);
	assert_received(s, 1, CHANGED);
	assert_by(s, 1, "leaves");
	sim_free(s);
}

static bool loses_catch_up(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	(void)s, (void)from, (void)to;
	return strcmp(sim_text(message, "type"), "catch-up") != 0;
}

/* Node 3 missed two pushes, and takes part in the next. */
static struct sim *world_with_one_behind(void)
{
	struct sim *s = world(4, POLICY_QUORUM);

	push(s, 0);
	sim_kill(s, 3);
	sim_run(s, 30 * S);
	push(s, 0);
	push(s, 0);
	s->on_message = loses_catch_up; /* otherwise it would be repaired before */
	sim_start(s, 3);
	sim_run(s, 30 * S);
	assert_int_equal(sim_serves(s, 3), 1);
	return s;
}

static void test_who_missed_pushes_gets_all_in_one_patch(void **state)
{
	struct sim *s = world_with_one_behind();

	(void)state;
	push(s, 0);
	for (unsigned i = 1; i < 4; i++) { /* the chain carries the bytes that any of them lacks */
		assert_received(s, i, 3 * PATCH);
		assert_int_equal(s->nodes[i].n_patched, 1);
	}
	assert_int_equal(said(s, 0, "patch"), 3 * PATCH);
	push(s, 0);
	assert_received(s, 3, PATCH);
	sim_free(s);
}

static void test_what_cannot_be_composed_travels_as_leaves(void **state)
{
	for (unsigned i = 0; i < 2; i++) {
		struct sim *s = world_with_one_behind();

		s->nodes[0].compose_fails = i == 0;
		s->nodes[0].compose_hangs = i == 1;
		push(s, 0);
		for (unsigned k = 1; k < 4; k++) {
			assert_int_equal(s->nodes[k].n_patched, 0);
			assert_true(s->nodes[k].n_received >= CHANGED);
		}
		assert_by(s, 0, "leaves");
		push(s, 0);
		assert_received(s, 3, PATCH);
		sim_free(s);
	}
	(void)state;
}

static void test_who_comes_back_fetches_one_patch_from_the_publisher(void **state)
{
	struct sim *s = world(3, POLICY_QUORUM);

	(void)state;
	push(s, 0);
	push(s, 0);
	sim_kill(s, 1);
	sim_run(s, 30 * S);
	push(s, 0);
	push(s, 0);
	sim_cut(s, 1, 2, true); /* it has no patches */
	sim_start(s, 1);
	assert_true(sim_run_until(s, sim_is_converged, 120 * S));
	sim_run(s, 30 * S);
	assert_int_equal(sim_serves(s, 1), s->n_contents);
	assert_received(s, 1, 2 * PATCH);
	assert_int_equal(s->nodes[1].n_patched, 1);
	sim_free(s);
}

static void test_who_lost_it_all_gets_leaves_and_the_others_a_patch(void **state)
{
	struct sim *s = world(4, POLICY_ALL);
	json_t *rows;

	(void)state;
	push(s, 0);
	sim_lose_data(s, 2);
	push(s, 0);
	assert_received(s, 1, PATCH);
	assert_true(s->nodes[2].n_received >= SIZE);
	rows = agent_status(s->nodes[0].agent, NULL);
	for (unsigned i = 0; i < 4; i++)
		assert_string_equal(sim_text(json_array_get(rows, json_array_size(rows) - 4 + i),
					     "by"),
				    i == 2 ? "full" : "patch");
	json_decref(rows);
	assert_received(s, 3, PATCH);
	push(s, 0);
	assert_received(s, 2, PATCH);
	sim_free(s);
}

/* Its weightd restarted and numbers from 1 again: another version has the number of the base. */
static void test_a_base_that_lies_is_found_out_and_costs_a_resend(void **state)
{
	struct sim *s = world(3, POLICY_ALL);

	(void)state;
	push(s, 0);
	sim_lose_data(s, 1);
	s->nodes[1].last_number = 0;
	s->n_contents += 3;
	sim_add_version(&s->nodes[1], SIM_BUFFER, s->n_contents, SIZE);
	push(s, 0);
	assert_true(s->nodes[1].n_received > PATCH);
	push(s, 0);
	assert_received(s, 1, PATCH);
	sim_free(s);
}

static void test_a_patch_that_came_wrong_is_made_good_by_leaves(void **state)
{
	struct sim *s = world(4, POLICY_ALL);

	(void)state;
	push(s, 0);
	s->nodes[2].n_corrupt = 1;
	push(s, 0);
	assert_received(s, 1, PATCH);
	assert_received(s, 2, PATCH + CHANGED);
	assert_int_equal(s->nodes[2].n_patched, 0);
	assert_received(s, 3, PATCH);
	assert_by(s, 0, "patch");
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

static void test_an_epoch_that_broke_is_resumed_within_the_patch(void **state)
{
	struct sim *s = world_of(
		(struct sim_options){.n_nodes = 4, .policy = POLICY_ALL, .n_patch = 16 * MIB});

	(void)state;
	push(s, 0);
	for (unsigned i = 1; i < 4; i++)
		s->nodes[i].rate = 8 * MIB;
	begin(s, 0);
	assert_true(sim_run_until(s, moves, 60 * S));
	assert_true(sim_kill_job(s, 2, JOB_TCP));
	finish(s, 0);
	for (unsigned i = 1; i < 4; i++)
		assert_int_equal(s->nodes[i].n_patched, 1);
	assert_received(s, 1, 16 * MIB + s->nodes[1].n_received_again);
	assert_received(s, 3, 16 * MIB + s->nodes[3].n_received_again);
	sim_free(s);
}

/* It can receive no patch: its engine dies whenever one is sent. */
static bool breaks_patches(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	(void)from;
	if (to == 2 && json_object_get(message, "patch") &&
	    strcmp(sim_text(message, "type"), "open") == 0)
		s->userdata = s;
	if (to == 2 && s->userdata && strcmp(sim_text(message, "type"), "start") == 0) {
		s->userdata = NULL;
		(void)sim_kill_job(s, 2, JOB_TCP);
	}
	return true;
}

static void test_who_breaks_at_a_patch_gets_leaves(void **state)
{
	struct sim *s = world(4, POLICY_ALL);

	(void)state;
	push(s, 0);
	s->on_message = breaks_patches;
	push(s, 0);
	assert_int_equal(s->nodes[1].n_patched, 1);
	assert_int_equal(s->nodes[2].n_patched, 0);
	assert_received(s, 2, CHANGED);
	assert_int_equal(s->nodes[3].n_patched, 1);
	sim_free(s);
}

static void test_what_another_publisher_pushed_begins_anew(void **state)
{
	struct sim *s = world(3, POLICY_ALL);

	(void)state;
	push(s, 0);
	push(s, 0);
	assert_int_equal(n_sources(s, 0), 1);
	push(s, 1);
	assert_by(s, 2, "leaves");
	assert_int_equal(n_sources(s, 0), 0);
	push(s, 0);
	assert_by(s, 2, "leaves");
	push(s, 0);
	assert_received(s, 2, PATCH);
	sim_free(s);
}

static void test_an_agent_that_was_started_anew_sends_leaves_once(void **state)
{
	struct sim *s = world(3, POLICY_ALL);

	(void)state;
	push(s, 0);
	sim_kill(s, 0);
	sim_start(s, 0);
	sim_run(s, 30 * S);
	push(s, 0);
	assert_received(s, 1, CHANGED);
	push(s, 0);
	assert_received(s, 1, PATCH);
	sim_free(s);
}

static void test_what_was_pushed_last_is_given_back_with_its_weightd(void **state)
{
	struct sim *s = world(3, POLICY_ALL);

	(void)state;
	push(s, 0);
	assert_int_equal(n_sources(s, 0), 1);
	sim_lose_data(s, 0);
	sim_run(s, 30 * S);
	assert_int_equal(n_sources(s, 0), 0);
	sim_free(s);
}

static void test_the_buffers_pushed_last_are_kept_and_no_others(void **state)
{
	struct sim *s = world(2, POLICY_ALL);

	(void)state;
	for (unsigned i = 0; i < 40; i++) {
		char sync[SYNC_ID_SIZE], why[WHY_SIZE], name[16];
		json_t *request;

		snprintf(name, sizeof(name), "buffer-%u", i);
		request = json_pack("{s:s}", "buffer", name);
		sim_forget_end(s, 0);
		sim_add_version(&s->nodes[0], name, ++s->n_contents, SIZE);
		assert_int_equal(agent_push(s->nodes[0].agent, request, sync, why), 0);
		assert_true(sim_run_until(s, sim_ended, 300 * S));
		assert_string_equal(s->nodes[0].outcome, "committed");
		assert_int_equal(n_sources(s, 0), i < 32 ? i + 1 : 32);
		json_decref(request);
	}
	sim_free(s);
}

static void test_a_source_that_dies_after_its_push_costs_a_patch(void **state)
{
	struct sim *s = world(3, POLICY_ALL);

	(void)state;
	push(s, 0);
	assert_true(sim_kill_job(s, 0, JOB_SOURCE));
	sim_run(s, S);
	push(s, 0);
	assert_received(s, 1, CHANGED);
	push(s, 0);
	assert_received(s, 1, PATCH);
	sim_free(s);
}

static void test_a_plan_says_what_a_push_then_sends(void **state)
{
	struct sim *s = world(4, POLICY_ALL);
	char sync[SYNC_ID_SIZE];

	(void)state;
	push(s, 0);
	sim_forget_end(s, 0);
	assert_int_equal(sim_plan(s, 0, sync), 0);
	assert_true(sim_run_until(s, sim_ended, 60 * S));
	assert_string_equal(s->nodes[0].outcome, "planned");
	assert_string_equal(sim_text(s->nodes[0].plan, "by"), "patch");
	assert_int_equal(sim_number(s->nodes[0].plan, "total"), 3 * PATCH);
	s->n_contents--;
	s->nodes[0].n_versions--;
	push(s, 0);
	assert_int_equal(said(s, 0, "bytes"), 3 * PATCH);
	sim_free(s);
}

/* Two epochs: a patch for some, and leaves for the node that lost everything. */
static void test_a_plan_has_what_all_epochs_send(void **state)
{
	struct sim *s = world(4, POLICY_ALL);
	char sync[SYNC_ID_SIZE];
	uint64_t total;

	(void)state;
	push(s, 0);
	sim_forget_end(s, 0);
	s->on_message = loses_catch_up; /* it is not repaired before */
	sim_lose_data(s, 2);
	sim_run(s, 30 * S);
	assert_int_equal(sim_plan(s, 0, sync), 0);
	assert_true(sim_run_until(s, sim_ended, 60 * S));
	assert_string_equal(sim_text(s->nodes[0].plan, "by"), "patch");
	total = sim_number(s->nodes[0].plan, "total");
	assert_int_equal(total, SIZE + 2 * PATCH);
	assert_int_equal(json_array_size(json_object_get(s->nodes[0].plan, "links")), 3);
	s->n_contents--;
	s->nodes[0].n_versions--;
	push(s, 0);
	assert_int_equal(said(s, 0, "bytes"), total);
	sim_free(s);
}

static bool asks_for_too_much(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	(void)s, (void)from;
	if (to == 1 && strcmp(sim_text(message, "type"), "open") == 0)
		json_object_set_new((json_t *)message, "patch", json_integer(SIZE));
	return true;
}

/* A coordinator may make a member allocate memory for half of a version, and no more. */
static void test_a_member_makes_no_room_for_a_patch_as_large_as_the_version(void **state)
{
	struct sim *s = world(3, POLICY_QUORUM);
	char sync[SYNC_ID_SIZE];

	(void)state;
	push(s, 0);
	s->on_message = asks_for_too_much;
	sim_forget_end(s, 0);
	assert_int_equal(sim_push(s, 0, sync), 0);
	assert_true(sim_run_until(s, sim_ended, 300 * S));
	assert_string_equal(s->nodes[0].outcome, "committed");
	assert_int_equal(sim_serves(s, 2), 2);
	assert_int_equal(sim_serves(s, 1), 1);
	sim_free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_patch_travels_where_that_is_less),
		cmocka_unit_test(test_leaves_travel_where_a_patch_is_hardly_less),
		cmocka_unit_test(test_nobody_keeps_anything_where_patches_are_not_wanted),
		cmocka_unit_test(test_who_missed_pushes_gets_all_in_one_patch),
		cmocka_unit_test(test_what_cannot_be_composed_travels_as_leaves),
		cmocka_unit_test(test_who_comes_back_fetches_one_patch_from_the_publisher),
		cmocka_unit_test(test_who_lost_it_all_gets_leaves_and_the_others_a_patch),
		cmocka_unit_test(test_a_base_that_lies_is_found_out_and_costs_a_resend),
		cmocka_unit_test(test_a_patch_that_came_wrong_is_made_good_by_leaves),
		cmocka_unit_test(test_an_epoch_that_broke_is_resumed_within_the_patch),
		cmocka_unit_test(test_who_breaks_at_a_patch_gets_leaves),
		cmocka_unit_test(test_what_another_publisher_pushed_begins_anew),
		cmocka_unit_test(test_an_agent_that_was_started_anew_sends_leaves_once),
		cmocka_unit_test(test_what_was_pushed_last_is_given_back_with_its_weightd),
		cmocka_unit_test(test_the_buffers_pushed_last_are_kept_and_no_others),
		cmocka_unit_test(test_a_source_that_dies_after_its_push_costs_a_patch),
		cmocka_unit_test(test_a_plan_says_what_a_push_then_sends),
		cmocka_unit_test(test_a_plan_has_what_all_epochs_send),
		cmocka_unit_test(test_a_member_makes_no_room_for_a_patch_as_large_as_the_version),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

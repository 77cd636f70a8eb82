/* Agents in a simulated world: the versions that nodes serve, policies, and refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ipc/base/num.h"
#include "push_scene.h"
#include "server/sync/base/json_packet.h"
#include "tests/unit/long_form.h"

#define S SIM_SECOND

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define N_MANY 150
#else
#define N_MANY 1000 /* in the long form */
#endif
#define N_FEWER 150

/* --- Pushes and repairs ------------------------------------------------------------------------ */

static void test_a_push_reaches_every_member(void **state)
{
	(void)state;
	for (unsigned n = 1; n <= 9; n++) {
		struct sim *s = push_world(n, POLICY_ALL);

		push_and_wait(s, "committed");
		for (unsigned i = 0; i < n; i++)
			assert_int_equal(sim_serves(s, i), 1);
		push_and_wait(s, "committed");
		assert_all_serve(s, 2);
		for (unsigned i = 1; i < n; i++) {
			assert_int_equal(s->nodes[i].n_received, 2 * s->options.n_bytes);
			assert_int_equal(s->nodes[i].n_received_again, 0);
		}
		sim_free(s);
	}
}

static void test_a_member_that_was_away_catches_up(void **state)
{
	struct sim *s = push_world(4, POLICY_QUORUM);

	(void)state;
	sim_kill(s, 2);
	push_and_wait(s, "committed");
	assert_int_equal(sim_serves(s, 2), 0);
	sim_start(s, 2);
	assert_all_serve(s, 1);
	sim_free(s);
}

static void test_a_node_that_lost_its_bytes_fetches_them(void **state)
{
	struct sim *s = push_world(3, POLICY_ALL);

	(void)state;
	push_and_wait(s, "committed");
	sim_run(s, S);
	sim_kill(s, 1);
	sim_lose_data(s, 1);
	sim_start(s, 1);
	assert_all_serve(s, 1);
	sim_free(s);
}

static void test_a_node_whose_weightd_was_emptied_notices_at_once(void **state)
{
	struct sim *s = push_world(3, POLICY_ALL);

	(void)state;
	push_and_wait(s, "committed");
	sim_run(s, S);
	for (unsigned i = 0; i < 3; i++) {
		sim_lose_data(s, i);
		sim_run(s, 10 * S);
		assert_int_equal(sim_serves(s, i), 1);
	}
	sim_free(s);
}

/*
 * The current version of its weightd was not pushed: a repair would replace it with the older one.
 */
static void test_what_a_weightd_let_go_of_is_not_fetched_again(void **state)
{
	struct sim *s = push_world(3, POLICY_ALL);

	(void)state;
	push_and_wait(s, "committed");
	sim_run(s, S);
	sim_replace(s, 0);
	sim_cut(s, 1, 2, true); /* it can request the version only from the node that lost it */
	sim_kill(s, 2);
	sim_lose_data(s, 2);
	sim_start(s, 2);
	sim_run(s, 60 * S);
	assert_int_equal(sim_serves(s, 0), 2);
	assert_int_equal(sim_serves(s, 2), 0);
	sim_cut(s, 1, 2, false);
	sim_run(s, 60 * S);
	assert_int_equal(sim_serves(s, 2), 1);
	for (unsigned i = 0; i < 2; i++) {
		sim_kill(s, 0);
		sim_start(s, 0);
		sim_run(s, 60 * S);
		assert_int_equal(sim_serves(s, 0), 2);
	}
	push_and_wait(s, "committed");
	assert_all_serve(s, 3);
	sim_free(s);
}

/* A source job, with its random duration, may fail before the event of the watch arrives. */
static void test_what_was_found_missing_and_then_let_go_of_is_not_fetched(void **state)
{
	struct sim *s = push_world(3, POLICY_ALL);
	cleanup(json_freep) json_t *catch_up = json_pack("{s:s, s:s, s:s, s:i, s:i}", "type",
							 "catch-up", "buffer", SIM_BUFFER, "group",
							 "main", "term", 0, "number", 0);

	(void)state;
	push_and_wait(s, "committed");
	sim_run(s, S);
	for (unsigned i = 0; i < 20; i++) {
		sim_replace(s, 0);
		agent_on_message(s->nodes[0].agent, 1, catch_up);
		sim_run(s, 20 * S);
		assert_int_equal(sim_serves(s, 0), s->n_contents);
		push_and_wait(s, "committed");
		assert_all_serve(s, s->n_contents);
	}
	sim_free(s);
}

static void test_a_node_that_kept_its_bytes_fetches_nothing(void **state)
{
	struct sim *s = push_world(3, POLICY_ALL);

	(void)state;
	push_and_wait(s, "committed");
	sim_run(s, S);
	sim_kill(s, 1);
	sim_start(s, 1);
	assert_all_serve(s, 1);
	sim_run(s, 30 * S);
	assert_int_equal(s->nodes[1].n_received, s->options.n_bytes);
	sim_free(s);
}

/* --- Policies ---------------------------------------------------------------------------------- */

static void test_all_fails_at_once_where_a_member_is_absent(void **state)
{
	struct sim *s = push_world(4, POLICY_ALL);
	uint64_t began;

	(void)state;
	push_and_wait(s, "committed");
	sim_kill(s, 3);
	sim_run(s, 30 * S);
	began = s->now_ns;
	push_and_wait(s, "failed");
	assert_non_null(strstr(s->nodes[0].why, "n0003 is not connected"));
	assert_non_null(strstr(s->nodes[0].why, "llama 1.2 was not committed"));
	assert_non_null(strstr(s->nodes[0].why,
			       "every other node still serves llama 1.1, the publisher what it has"));
	assert_true(s->now_ns - began < S);
	assert_int_equal(sim_serves(s, 1), 1);
	sim_free(s);
}

static void test_who_is_long_gone_takes_no_time_from_those_who_make_room(void **state)
{
	struct sim *s = push_world(4, POLICY_QUORUM);

	(void)state;
	s->nodes[0].config.prepare_ns = 2 * S;
	s->nodes[1].room_ns = s->nodes[2].room_ns = 5 * S;
	sim_kill(s, 3);
	sim_run(s, 30 * S);
	push_and_wait(s, "committed");
	assert_int_equal(sim_serves(s, 1), 1);
	assert_int_equal(sim_serves(s, 2), 1);
	sim_free(s);
}

static void test_quorum_needs_more_than_half(void **state)
{
	struct sim *s = push_world(4, POLICY_QUORUM);

	(void)state;
	sim_kill(s, 2);
	sim_kill(s, 3);
	push_and_wait(s, "failed");
	sim_start(s, 2);
	sim_run(s, 2 * S);
	push_and_wait(s, "committed");
	assert_int_equal(sim_serves(s, 1), 2);
	assert_int_equal(sim_serves(s, 2), 2);
	sim_free(s);
}

static void test_each_commits_whoever_verified(void **state)
{
	struct sim *s = push_world(4, POLICY_EACH);

	(void)state;
	s->nodes[2].sinks_fail = true;
	push_and_wait(s, "committed");
	assert_int_equal(sim_serves(s, 1), 1);
	assert_int_equal(sim_serves(s, 2), 0);
	assert_int_equal(sim_serves(s, 3), 1);
	s->nodes[2].sinks_fail = false;
	assert_all_serve(s, 1);
	sim_free(s);
}

/* --- Refusals ----------------------------------------------------------------------------------- */

static void test_a_clock_that_is_wrong_is_refused(void **state)
{
	struct sim *s = push_world(2, POLICY_ALL);

	(void)state;
	s->nodes[1].clock_skew_ns = 16 * 60 * S;
	push_and_wait(s, "failed");
	assert_non_null(strstr(s->nodes[0].why, "the clock of n0000 and that of n0001 differ by 9"));
	sim_free(s);
}

static void test_a_full_member_says_so(void **state)
{
	struct sim *s = push_world(2, POLICY_ALL);

	(void)state;
	s->nodes[1].sinks_fail = true;
	push_and_wait(s, "failed");
	assert_non_null(
		strstr(s->nodes[0].why, "n0001 refused: host needs 64 MiB more than there are"));
	sim_free(s);
}

/* Jobs' sentences may be this long. */
static void test_a_long_reason_is_told_whole(void **state)
{
	struct sim *s = push_world(2, POLICY_ALL);
	cleanup(json_freep)
		json_t *request = json_pack("{s:s, s:i}", "buffer", SIM_BUFFER, "version", 1000);
	char sync[SYNC_ID_SIZE], refusal[WHY_SIZE], why[WHY_SIZE];

	(void)state;
	memset(why, 'x', sizeof(why) - 1);
	why[sizeof(why) - 1] = '\0';
	s->nodes[1].sinks_fail = true;
	s->nodes[0].local_why = s->nodes[1].local_why = why;
	push_and_wait(s, "failed");
	assert_non_null(strstr(json_string_value(json_object_get(s->nodes[0].end, "error")), why));
	s->nodes[1].sinks_fail = false;
	sim_forget_end(s, 0);
	assert_int_equal(agent_push(s->nodes[0].agent, request, sync, refusal), 0);
	assert_true(sim_run_until(s, sim_ended, 60 * S));
	assert_non_null(strstr(json_string_value(json_object_get(s->nodes[0].end, "error")), why));
	sim_free(s);
}

static void test_a_publisher_that_forgot_everything_learns_it_from_others(void **state)
{
	struct sim *s = push_world(3, POLICY_ALL);

	(void)state;
	push_and_wait(s, "committed");
	push_and_wait(s, "committed");
	sim_kill(s, 0);
	json_decref(s->nodes[0].commit_log);
	s->nodes[0].commit_log = NULL;
	sim_start(s, 0);
	sim_run(s, 5 * S);
	push_and_wait(s, "committed");
	assert_all_serve(s, 3);
	assert_int_equal(s->pairs[3][0], 1);
	assert_int_equal(s->pairs[3][1], 3);
	sim_free(s);
}

static void test_only_publishers_push_and_one_sync_is_at_a_time(void **state)
{
	struct sim *s = push_world(3, POLICY_ALL);
	char sync[SYNC_ID_SIZE];

	(void)state;
	assert_int_equal(sim_push(s, 1, sync), -EPERM);
	assert_string_equal(s->nodes[1].why,
			    "n0001 is no publisher of the group 'main'; ask on n0000");
	assert_int_equal(sim_push(s, 0, sync), 0);
	assert_int_equal(sim_push(s, 0, sync), -EBUSY);
	sim_free(s);
}

/* --- Hostile peers ------------------------------------------------------------------------------ */

struct tap {
	json_t *prepare; /* the first that was sent */
	char code[32]; /* the last refusal */
};

static bool listen_in(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	struct tap *tap = s->userdata;
	const char *type = json_string_value(json_object_get(message, "type"));

	(void)from, (void)to;
	if (strcmp(type, "prepare") == 0 && !tap->prepare)
		tap->prepare = json_deep_copy(message);
	if (strcmp(type, "refuse") == 0)
		snprintf(tap->code, sizeof(tap->code), "%s",
			 json_string_value(json_object_get(message, "code")));
	return true;
}

/* The answer of node 1 to a PREPARE of one of its peers, 0 or 2. */
static const char *answer_to(struct sim *s, unsigned from, const char *decision)
{
	struct tap *tap = s->userdata;

	tap->code[0] = '\0';
	if (decision)
		json_object_set_new(tap->prepare, "decision", json_string(decision));
	else
		json_object_del(tap->prepare, "decision");
	json_object_set_new(tap->prepare, "sync", json_string("00112233445566aa"));
	agent_on_message(s->nodes[1].agent, from ? 1 : 0, tap->prepare);
	sim_run(s, S);
	return tap->code;
}

static void test_what_was_signed_but_not_decided_is_taken_from_nobody(void **state)
{
	struct sim *s = push_world(3, POLICY_ALL);
	struct tap tap = {0};

	(void)state;
	s->on_message = listen_in;
	s->userdata = &tap;
	s->nodes[2].sinks_fail = true;
	push_and_wait(s, "failed");
	assert_string_equal(answer_to(s, 2, NULL), "publisher");
	assert_string_equal(answer_to(s, 2, "0123456789abcdef"), "signature");
	assert_string_equal(answer_to(s, 0, "0123456789abcdef"), "signature");
	assert_int_equal(sim_serves(s, 1), 0);
	json_decref(tap.prepare);
	sim_free(s);
}

static void test_what_is_older_than_the_record_is_fenced(void **state)
{
	struct sim *s = push_world(3, POLICY_ALL);
	struct tap tap = {0};

	(void)state;
	s->on_message = listen_in;
	s->userdata = &tap;
	push_and_wait(s, "committed");
	assert_string_equal(answer_to(s, 0, NULL), "there");
	push_and_wait(s, "committed");
	assert_string_equal(answer_to(s, 0, NULL), "fenced");
	json_object_set_new(tap.prepare, "document", json_string("{\"protocol\":1}"));
	assert_string_equal(answer_to(s, 0, NULL), ""); /* the connection was closed */
	sim_run(s, 5 * S);
	push_and_wait(s, "committed");
	assert_all_serve(s, 3);
	json_decref(tap.prepare);
	sim_free(s);
}

static bool n1_is_last(struct sim *s)
{
	cleanup(json_freep) json_t *rows = agent_status(s->nodes[0].agent, NULL);
	bool moves = false, sends = false;
	json_t *row;
	size_t i;

	json_array_foreach(rows, i, row)
	{
		const char *from = json_string_value(json_object_get(row, "from"));

		if (!from || strcmp(json_string_value(json_object_get(row, "phase")), "bytes") != 0)
			continue;
		moves |= strcmp(json_string_value(json_object_get(row, "node")), "n0001") == 0;
		sends |= strcmp(from, "n0001") == 0;
	}
	return moves && !sends;
}

static void test_a_slow_node_comes_last_in_the_next_chain(void **state)
{
	struct sim *s = push_world(4, POLICY_ALL);
	char sync[SYNC_ID_SIZE];

	(void)state;
	s->nodes[1].rate = 16 * MIB;
	push_and_wait(s, "committed");
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(sim_push(s, 0, sync), 0);
		assert_true(sim_run_until(s, n1_is_last, 10 * S));
		assert_true(sim_run_until(s, sim_ended, 60 * S));
		assert_string_equal(s->nodes[0].outcome, "committed");
	}
	sim_free(s);
}

/*
 * A member sends each of these at the wrong time: no agent crashes, and other nodes are not
 * affected.
 */
static void test_messages_without_sense_do_no_harm(void **state)
{
	static const char *const TEXTS[] = {
		"{}",
		"{\"type\":7}",
		"{\"type\":\"heads\"}",
		"{\"type\":\"heads\",\"heads\":[{}]}",
		"{\"type\":\"heads\",\"heads\":[{\"buffer\":\"llama\",\"group\":\"main\",\"term\":9007199254740992,"
		"\"number\":9007199254740992,\"root\":"
		"\"0000000000000000000000000000000000000000000000000000000000000000\"}]}",
		"{\"type\":\"prepare\"}",
		"{\"type\":\"prepare\",\"sync\":\"0123456789abcdef\",\"group\":\"main\"}",
		"{\"type\":\"commit\",\"sync\":\"0123456789abcdef\"}",
		"{\"type\":\"commit\",\"sync\":5}",
		"{\"type\":\"catch-up\"}",
		"{\"type\":\"cannot-repair\"}",
		"{\"type\":\"catch-up\",\"buffer\":\"llama\",\"group\":\"main\",\"term\":0,\"number\":0}",
		"{\"type\":\"unheard-of\",\"sync\":\"0123456789abcdef\"}",
	};
	struct sim *s = push_world(3, POLICY_ALL);

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(TEXTS); i++) {
		cleanup(json_freep) json_t *message = json_loads(TEXTS[i], 0, NULL);

		assert_non_null(message);
		agent_on_message(s->nodes[0].agent, 1, message);
		sim_run(s, S);
	}
	push_and_wait(s, "committed");
	assert_all_serve(s, 1);
	assert_int_equal(s->pairs[1][0], 1);
	sim_free(s);
}

/* --- Many members ------------------------------------------------------------------------------ */

static double seconds(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void test_a_thousand_agents_take_one_push(void **state)
{
	const unsigned n = is_long_form() ? N_MANY : N_FEWER;
	double began = seconds(CLOCK_MONOTONIC), took, virtual;
	struct sim *s;
	uint64_t before, messages;
	char sync[SYNC_ID_SIZE];

	(void)state;
	sim_require_files(FILES_MANY);
	s = sim_new(&(struct sim_options){.n_nodes = n, .policy = POLICY_ALL, .seed = 1});
	sim_run(s, 2 * S);
	before = s->now_ns;
	s->n_messages = 0;
	assert_int_equal(sim_push(s, 0, sync), 0);
	assert_true(sim_run_until(s, sim_ended, 300 * S));
	assert_string_equal(s->nodes[0].outcome, "committed");
	virtual = (double)(s->now_ns - before) / 1e9;
	messages = s->n_messages;
	sim_run(s, S);
	for (unsigned i = 0; i < n; i++)
		assert_int_equal(sim_serves(s, i), 1);
	took = seconds(CLOCK_MONOTONIC) - began;
	print_message("%u agents: committed after %.2f virtual s and %ju messages, %ju with the heads, "
		      "%zu MiB of heap, %.1f s of real time\n",
		      n, virtual, (uintmax_t)messages, (uintmax_t)s->n_messages,
		      (mallinfo2().uordblks + mallinfo2().hblkhd) >> 20, took);
	assert_in_range(s->n_messages, n, 40 * n); /* less than the number of pairs */
	sim_free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_push_reaches_every_member),
		cmocka_unit_test(test_a_member_that_was_away_catches_up),
		cmocka_unit_test(test_a_node_that_lost_its_bytes_fetches_them),
		cmocka_unit_test(test_a_node_whose_weightd_was_emptied_notices_at_once),
		cmocka_unit_test(test_what_a_weightd_let_go_of_is_not_fetched_again),
		cmocka_unit_test(test_what_was_found_missing_and_then_let_go_of_is_not_fetched),
		cmocka_unit_test(test_a_node_that_kept_its_bytes_fetches_nothing),
		cmocka_unit_test(test_all_fails_at_once_where_a_member_is_absent),
		cmocka_unit_test(test_who_is_long_gone_takes_no_time_from_those_who_make_room),
		cmocka_unit_test(test_quorum_needs_more_than_half),
		cmocka_unit_test(test_each_commits_whoever_verified),
		cmocka_unit_test(test_a_clock_that_is_wrong_is_refused),
		cmocka_unit_test(test_a_full_member_says_so),
		cmocka_unit_test(test_a_long_reason_is_told_whole),
		cmocka_unit_test(test_a_publisher_that_forgot_everything_learns_it_from_others),
		cmocka_unit_test(test_only_publishers_push_and_one_sync_is_at_a_time),
		cmocka_unit_test(test_what_was_signed_but_not_decided_is_taken_from_nobody),
		cmocka_unit_test(test_what_is_older_than_the_record_is_fenced),
		cmocka_unit_test(test_a_slow_node_comes_last_in_the_next_chain),
		cmocka_unit_test(test_messages_without_sense_do_no_harm),
		cmocka_unit_test(test_a_thousand_agents_take_one_push),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

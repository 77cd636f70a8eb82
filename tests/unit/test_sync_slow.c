/* Slow links: nodes that wait for one, and nodes that do not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/sync/base/json_packet.h"
#include "sim.h"
#include "tests/unit/long_form.h"

#define S SIM_SECOND
#define MIB ((uint64_t)1 << 20)
#define SIZE (64 * MIB)
#define SOON (10 * S) /* a push of this size without slow nodes takes less */

static uint64_t seed = 5;

static struct sim *world(unsigned n, enum policy policy)
{
	struct sim *s = sim_new(&(
		struct sim_options){.n_nodes = n, .policy = policy, .n_bytes = SIZE, .seed = seed});

	sim_run(s, S); /* they connect and exchange heads */
	return s;
}

static void push(struct sim *s)
{
	char sync[SYNC_ID_SIZE];

	sim_forget_end(s, 0);
	assert_int_equal(sim_push(s, 0, sync), 0);
}

/* All but one serve the newest. */
static bool most_serve(struct sim *s)
{
	unsigned slow = *(unsigned *)s->userdata;

	for (unsigned i = 0; i < s->options.n_nodes; i++)
		if (i != slow && sim_serves(s, i) != s->n_contents)
			return false;
	return true;
}

static const char *text_of(const struct sim *s, const char *node, const char *key)
{
	json_t *rows = json_object_get(s->nodes[0].end, "nodes"), *row;
	size_t i;

	json_array_foreach(rows, i,
			   row) if (strcmp(json_string_value(json_object_get(row, "node")), node) ==
				    0) return json_string_value(json_object_get(row, key));
	return NULL;
}

static bool is_left(struct sim *s)
{
	return s->nodes[0].left;
}

/* The push reports once that it does not wait, with the name of the slow node. */
static void assert_who_is_left(struct sim *s, unsigned slow)
{
	json_t *nodes = json_object_get(s->nodes[0].left, "nodes"), *row;
	size_t i;

	assert_string_equal(json_string_value(json_object_get(s->nodes[0].left, "state")),
			    "committed");
	assert_int_equal(json_array_size(nodes), 5);
	json_array_foreach(nodes, i, row)
	{
		const char *node = json_string_value(json_object_get(row, "node"));
		const char *state = json_string_value(json_object_get(row, "state"));
		bool is_slow = strcmp(node, s->nodes[slow].name) == 0;

		assert_int_equal(strcmp(state, "committed") != 0, is_slow);
		assert_int_equal(!json_is_null(json_object_get(row, "why")), is_slow);
	}
}

static void nobody_waits_for(enum policy policy, unsigned slow)
{
	struct sim *s = world(5, policy);

	s->userdata = &slow;
	s->nodes[slow].rate = MIB;
	for (unsigned i = 0; i < 2; i++) {
		push(s);
		assert_true(sim_run_until(s, most_serve, SOON));
		assert_int_equal(sim_serves(s, slow), i ? s->n_contents - 1 : 0);
		assert_false(sim_ended(s));
		assert_true(sim_run_until(s, is_left, SOON));
		assert_false(sim_ended(s));
		assert_who_is_left(s, slow);
		assert_true(sim_run_until(s, sim_ended, 2 * SIZE / MIB * S));
		assert_string_equal(s->nodes[0].outcome, "committed");
		assert_int_equal(sim_serves(s, slow), s->n_contents);
	}
	for (unsigned i = 1; i < 5; i++)
		/* Pieces that were under way. */
		assert_in_range(s->nodes[i].n_received_again, 0, MIB);
	sim_free(s);
}

static void test_quorum_and_each_wait_for_no_slow_link_wherever_it_is(void **state)
{
	(void)state;
	for (seed = 1; seed <= (is_long_form() ? 20 : 6); seed++)
		for (unsigned slow = 1; slow < 5; slow++)
			nobody_waits_for(seed % 2 ? POLICY_QUORUM : POLICY_EACH, slow);
}

/* When its neighbour's engine ends, its own one reports a broken link before it is stopped. */
static bool break_the_last(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	(void)from;
	if (to != 4 || strcmp(json_string_value(json_object_get(message, "type")), "stop") != 0)
		return true;
	assert_true(sim_kill_job(s, 4, JOB_TCP));
	s->on_message = NULL;
	return false;
}

static void test_what_breaks_where_an_epoch_is_left_is_nobodys_fault(void **state)
{
	struct sim *s = world(5, POLICY_EACH);
	unsigned slow = 3;

	(void)state;
	s->userdata = &slow;
	s->nodes[slow].rate = MIB;
	s->on_message = break_the_last;
	push(s);
	assert_true(sim_run_until(s, most_serve, SOON));
	assert_null(s->on_message);
	sim_free(s);
}

static bool n2_serves(struct sim *s)
{
	return sim_serves(s, 2) == 1;
}

static void test_two_slow_links_hold_up_themselves_alone(void **state)
{
	struct sim *s = world(6, POLICY_EACH);

	(void)state;
	s->nodes[1].rate = MIB;
	s->nodes[2].rate = 2 * MIB;
	push(s);
	sim_run(s, 2 * SOON);
	for (unsigned i = 3; i < 6; i++)
		assert_int_equal(sim_serves(s, i), 1);
	/* The faster one of them does not wait for the other one. */
	assert_true(sim_run_until(s, n2_serves, SIZE / MIB * S));
	assert_int_equal(sim_serves(s, 1), 0);
	assert_true(sim_run_until(s, sim_ended, 2 * SIZE / MIB * S));
	assert_int_equal(sim_serves(s, 1), 1);
	sim_free(s);
}

static void test_who_never_has_its_bytes_fails_alone_and_is_measured(void **state)
{
	struct sim *s = world(4, POLICY_QUORUM);
	unsigned slow = 1;

	(void)state;
	s->userdata = &slow;
	s->nodes[1].rate = 64 << 10;
	push(s);
	assert_true(sim_run_until(s, most_serve, SOON));
	assert_true(sim_run_until(s, sim_ended, 300 * S));
	assert_string_equal(s->nodes[0].outcome, "committed");
	assert_string_equal(text_of(s, "n0001", "state"), "failed");
	assert_non_null(strstr(text_of(s, "n0001", "why"), "took longer than all of it may"));
	assert_string_equal(text_of(s, "n0002", "state"), "committed");
	assert_int_equal(sim_serves(s, 2), 1);
	/* Now its rate is known, and it is the last one at once. */
	push(s);
	assert_true(sim_run_until(s, most_serve, SOON / 2));
	sim_free(s);
}

static void test_the_next_push_does_not_wait_for_it_either(void **state)
{
	struct sim *s = world(4, POLICY_QUORUM);
	unsigned slow = 2;

	(void)state;
	s->userdata = &slow;
	s->nodes[slow].rate = MIB;
	push(s);
	assert_true(sim_run_until(s, most_serve, SOON));
	sim_run(s, S);
	push(s);
	assert_true(sim_run_until(s, most_serve, SOON));
	assert_true(sim_run_until(s, sim_is_converged, 4 * SIZE / MIB * S));
	assert_int_equal(sim_serves(s, slow), 2);
	sim_free(s);
}

static void test_what_is_refused_does_not_end_it(void **state)
{
	struct sim *s = world(4, POLICY_QUORUM);
	cleanup(json_freep)
		json_t *request = json_pack("{s:s, s:i}", "buffer", SIM_BUFFER, "max_rate", 65536);
	char sync[SYNC_ID_SIZE], why[WHY_SIZE] = "";
	unsigned slow = 2;

	(void)state;
	s->userdata = &slow;
	s->nodes[slow].rate = MIB;
	push(s);
	assert_true(sim_run_until(s, most_serve, SOON));
	sim_run(s, S);
	assert_int_equal(agent_average(s->nodes[0].agent, request, sync, why), -EBADMSG);
	assert_non_null(strstr(why, "are too few for an average of 4 nodes"));
	assert_true(sim_run_until(s, sim_ended, 2 * SIZE / MIB * S));
	assert_string_equal(text_of(s, "n0002", "state"), "committed");
	sim_free(s);
}

static void test_nor_does_that_of_another_publisher(void **state)
{
	struct sim *s = sim_new(&(struct sim_options){.n_nodes = 4,
						      .n_publishers = 2,
						      .policy = POLICY_QUORUM,
						      .n_bytes = SIZE,
						      .seed = seed});
	char sync[SYNC_ID_SIZE];
	unsigned slow = 2;

	(void)state;
	sim_run(s, S);
	s->userdata = &slow;
	s->nodes[slow].rate = MIB;
	push(s);
	assert_true(sim_run_until(s, most_serve, SOON));
	sim_run(s, S);
	assert_int_equal(sim_push(s, 1, sync), 0);
	assert_true(sim_run_until(s, most_serve, SOON));
	assert_string_equal(s->nodes[0].outcome, "committed");
	assert_true(sim_run_until(s, sim_is_converged, 4 * SIZE / MIB * S));
	sim_free(s);
}

static const char *phase_of(struct sim *s, const char *node)
{
	static char phase[32];
	json_t *rows = agent_status(s->nodes[0].agent, NULL), *row;
	size_t i;

	phase[0] = '\0';
	json_array_foreach(rows, i, row) if (strcmp(json_string_value(json_object_get(row, "node")),
						    node) == 0)
		snprintf(phase, sizeof(phase), "%s",
			 json_string_value(json_object_get(row, "phase")));
	json_decref(rows);
	return phase;
}

static bool n1_is_verified(struct sim *s)
{
	return strcmp(phase_of(s, "n0001"), "verified") == 0;
}

/* Policy "all": all nodes wait for each other, but not with work that they can do before. */
static void test_with_all_they_verify_while_others_move(void **state)
{
	struct sim *s = world(4, POLICY_ALL);

	(void)state;
	s->nodes[3].rate = 4 * MIB;
	push(s);
	assert_true(sim_run_until(s, n1_is_verified, SOON));
	assert_string_equal(phase_of(s, "n0003"), "bytes");
	assert_int_equal(sim_serves(s, 1), 0);
	assert_true(sim_run_until(s, sim_ended, 60 * S));
	assert_string_equal(s->nodes[0].outcome, "committed");
	sim_free(s);
}

static bool n1_verifies(struct sim *s)
{
	return strcmp(phase_of(s, "n0001"), "verify") == 0;
}

static bool n1_failed(struct sim *s)
{
	return strcmp(phase_of(s, "n0001"), "failed") == 0;
}

static void test_who_hangs_while_others_move_is_lost_by_a_deadline(void **state)
{
	struct sim *s = world(4, POLICY_EACH);
	uint64_t began;

	(void)state;
	s->nodes[3].rate = MIB;
	push(s);
	assert_true(sim_run_until(s, n1_verifies, SOON));
	s->nodes[1].is_silent = true;
	began = s->now_ns;
	assert_true(sim_run_until(s, n1_failed, 30 * S));
	assert_string_equal(phase_of(s, "n0003"), "bytes");
	assert_true(s->now_ns - began >= 10 * S);
	s->nodes[1].is_silent = false;
	assert_true(sim_run_until(s, sim_is_converged, 200 * S));
	sim_free(s);
}

static bool lose_commits_to_n1(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	uint64_t *at_ns = s->userdata;

	(void)from;
	if (to != 1 || strcmp(json_string_value(json_object_get(message, "type")), "commit") != 0)
		return true;
	*at_ns = s->now_ns;
	return false;
}

/* Its bytes took nearly all of the time limit. */
static void test_a_commit_has_its_own_time(void **state)
{
	struct sim *s = world(3, POLICY_ALL);
	uint64_t began = s->now_ns, at_ns = 0;

	(void)state;
	s->userdata = &at_ns;
	s->on_message = lose_commits_to_n1;
	s->nodes[2].rate = SIZE / 98;
	push(s);
	assert_true(sim_run_until(s, sim_ended, 300 * S));
	assert_in_range(at_ns - began, 97 * S, 104 * S);
	assert_in_range(s->now_ns - at_ns, 15 * S, 17 * S);
	assert_string_equal(text_of(s, "n0001", "state"), "unknown");
	assert_non_null(strstr(text_of(s, "n0001", "why"), "while it committed"));
	assert_string_equal(text_of(s, "n0002", "state"), "committed");
	sim_free(s);
}

/* The nodes in the order of the chain. */
static void read_chain(struct sim *s, const char *sync, char chain[5][16])
{
	json_t *rows = agent_status(s->nodes[0].agent, sync), *row = NULL;
	const char *from = "n0000";
	unsigned n = 0;
	size_t i;

	while (n < 5) {
		json_array_foreach(rows, i, row)
		{
			const char *its = json_string_value(json_object_get(row, "from"));

			if (its && strcmp(its, from) == 0)
				break;
		}
		assert_non_null(row);
		from = json_string_value(json_object_get(row, "node"));
		snprintf(chain[n++], 16, "%s", from);
	}
	json_decref(rows);
}

static bool bytes_move(struct sim *s)
{
	return strcmp(phase_of(s, "n0001"), "bytes") == 0;
}

/* No node is behind a slower one, once all were measured: at least one by each push. */
static void test_a_chain_is_in_the_order_of_what_was_measured(void **state)
{
	static const char *const ORDER[] = {"n0002", "n0005", "n0004", "n0003", "n0001"};
	static const uint64_t RATES[] = {0, 2, 48, 8, 20, 40};
	struct sim *s = world(6, POLICY_ALL);
	char sync[SYNC_ID_SIZE], chain[5][16];

	(void)state;
	for (unsigned i = 1; i < 6; i++)
		s->nodes[i].rate = RATES[i] * MIB;
	for (unsigned i = 0; i < 6; i++) {
		sim_forget_end(s, 0);
		assert_int_equal(sim_push(s, 0, sync), 0);
		assert_true(sim_run_until(s, bytes_move, SOON));
		read_chain(s, sync, chain);
		assert_true(sim_run_until(s, sim_ended, 2 * SIZE / MIB * S));
		assert_string_equal(s->nodes[0].outcome, "committed");
	}
	for (unsigned i = 0; i < 5; i++)
		assert_string_equal(chain[i], ORDER[i]);
	sim_free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_quorum_and_each_wait_for_no_slow_link_wherever_it_is),
		cmocka_unit_test(test_what_breaks_where_an_epoch_is_left_is_nobodys_fault),
		cmocka_unit_test(test_two_slow_links_hold_up_themselves_alone),
		cmocka_unit_test(test_who_never_has_its_bytes_fails_alone_and_is_measured),
		cmocka_unit_test(test_the_next_push_does_not_wait_for_it_either),
		cmocka_unit_test(test_what_is_refused_does_not_end_it),
		cmocka_unit_test(test_nor_does_that_of_another_publisher),
		cmocka_unit_test(test_with_all_they_verify_while_others_move),
		cmocka_unit_test(test_a_commit_has_its_own_time),
		cmocka_unit_test(test_who_hangs_while_others_move_is_lost_by_a_deadline),
		cmocka_unit_test(test_a_chain_is_in_the_order_of_what_was_measured),
	};

	return cmocka_run_group_tests_name("sync_slow", tests, NULL, NULL);
}

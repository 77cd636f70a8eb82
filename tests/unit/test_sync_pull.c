/* Pulls: a user's request for the version of one node, and what may come between. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "server/sync/participant/participant.h"
#include "sim.h"
#include "sim_jobs.h"

#define S SIM_SECOND
#define MIB ((uint64_t)1 << 20)

/* n0 has pushed a version to all, and a user of n1 has published over it. */
static struct sim *one_that_let_go(void)
{
	struct sim *s = sim_new(
		&(struct sim_options){.n_nodes = 4, .policy = POLICY_EACH, .seed = 5});
	char sync[SYNC_ID_SIZE];

	sim_run(s, S);
	assert_int_equal(sim_push(s, 0, sync), 0);
	assert_true(sim_run_until(s, sim_is_converged, 60 * S));
	sim_replace(s, 1);
	sim_run(s, S);
	sim_forget_end(s, 1);
	return s;
}

/* n1 pulls from n2. `number` 0: whichever it has. */
static int pull(struct sim *s, uint64_t number, bool is_dry, char id[SYNC_ID_SIZE])
{
	cleanup(json_freep) json_t *request = json_pack("{s:s, s:s, s:I, s:I, s:b}", "buffer",
							SIM_BUFFER, "node", s->nodes[2].name,
							"term", (json_int_t)(number != 0), "number",
							(json_int_t)number, "dry", is_dry);

	return sim_ask(s, 1, request, agent_pull, id);
}

static bool n1_ended(struct sim *s)
{
	return s->nodes[1].end;
}

/* At n1, with these words as its reason. The id of a pull is in each of its events. */
static void assert_end(struct sim *s, const char *id, const char *outcome, const char *words)
{
	const json_t *end;
	const char *pull_id;

	assert_true(sim_run_until(s, n1_ended, 200 * S));
	end = s->nodes[1].end;
	pull_id = json_string_value(json_object_get(end, "pull"));
	assert_string_equal(pull_id ? pull_id : json_string_value(json_object_get(end, "sync")), id);
	if (strcmp(s->nodes[1].outcome, outcome) != 0 || !strstr(s->nodes[1].why, words))
		fail_msg("'%s': '%s'", s->nodes[1].outcome, s->nodes[1].why);
}

/* Nothing goes on at n1, and what its user published stays. */
static void assert_unchanged(struct sim *s)
{
	sim_run(s, 30 * S);
	assert_int_equal(sim_serves(s, 1), 2);
	assert_true(list_empty(&s->nodes[1].jobs));
	assert_null(participant_find_of_buffer(s->nodes[1].agent, SIM_BUFFER));
}

static void test_no_other_node_is_asked(void **state)
{
	struct sim *s = one_that_let_go();
	char id[SYNC_ID_SIZE];

	(void)state;
	assert_int_equal(pull(s, 0, false, id), 0);
	assert_end(s, id, "committed", "");
	assert_int_equal(sim_serves(s, 1), 1);
	assert_int_equal(s->nodes[2].n_read, 1);
	assert_int_equal(s->nodes[0].n_read + s->nodes[3].n_read, 1); /* n0, for its push */
	assert_int_equal(pull(s, 0, false, id), 0); /* it has it now */
	assert_end(s, id, "committed", "");
	assert_int_equal(s->nodes[2].n_read, 1);
	sim_free(s);
}

static void test_a_plan_moves_nothing(void **state)
{
	struct sim *s = one_that_let_go();
	uint64_t before = s->nodes[1].n_received;
	char id[SYNC_ID_SIZE];

	(void)state;
	assert_int_equal(pull(s, 1, true, id), 0);
	assert_end(s, id, "planned", "");
	assert_int_equal(json_integer_value(json_object_get(s->nodes[1].end, "changed")), 64 * MIB);
	assert_unchanged(s);
	assert_int_equal(s->nodes[1].n_received, before);
	sim_free(s);
}

/* Has the effect of a release that does not read the field. */
static bool forgets_dry(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	(void)s, (void)from, (void)to;
	(void)json_object_del((json_t *)message, "dry");
	return true;
}

static void test_a_node_that_cannot_plan_is_refused_before_bytes_move(void **state)
{
	struct sim *s = one_that_let_go();
	uint64_t before = s->nodes[1].n_received;
	char id[SYNC_ID_SIZE];

	(void)state;
	s->on_message = forgets_dry;
	assert_int_equal(pull(s, 0, true, id), 0);
	assert_end(s, id, "failed", "n0002 has an earlier release, which cannot plan it");
	assert_unchanged(s);
	assert_int_equal(s->nodes[1].n_received, before);
	sim_free(s);
}

static void test_a_node_that_never_answers_ends_it(void **state)
{
	struct sim *s = one_that_let_go();
	char id[SYNC_ID_SIZE], why[WHY_SIZE];

	(void)state;
	s->nodes[2].is_silent = true;
	assert_int_equal(pull(s, 0, false, id), 0);
	sim_run(s, 20 * S);
	assert_false(n1_ended(s));
	assert_int_equal(pull(s, 0, false, why), -EBUSY);
	assert_end(s, id, "failed", "from n0002: it did not begin to send it in time");
	assert_unchanged(s);
	sim_free(s);
}

static void test_a_node_that_is_lost_ends_it(void **state)
{
	struct sim *s = one_that_let_go();
	char id[SYNC_ID_SIZE];

	(void)state;
	s->nodes[2].is_silent = true;
	assert_int_equal(pull(s, 0, false, id), 0);
	sim_run(s, S);
	sim_kill(s, 2);
	assert_end(s, id, "failed", "from n0002: it is not connected any more");
	assert_unchanged(s);
	sim_free(s);
}

static bool n1_receives(struct sim *s)
{
	const struct participant *p = participant_find_of_buffer(s->nodes[1].agent, SIM_BUFFER);

	return p && participant_is_repair(p) && p->state == PARTICIPANT_MOVING;
}

static void test_it_can_be_cancelled_before_and_while_bytes_move(void **state)
{
	struct sim *s = one_that_let_go();
	char id[SYNC_ID_SIZE], why[WHY_SIZE];

	(void)state;
	s->nodes[1].rate = MIB;
	for (int moves = 0; moves < 2; moves++) {
		assert_int_equal(pull(s, 0, false, id), 0);
		if (moves)
			assert_true(sim_run_until(s, n1_receives, 60 * S));
		sim_forget_end(s, 1);
		assert_int_equal(agent_cancel(s->nodes[1].agent, id, why), 0);
		assert_end(s, id, "failed", "it was cancelled");
		assert_int_equal(agent_cancel(s->nodes[1].agent, id, why), -ENOENT);
		assert_unchanged(s);
		assert_true(sim_is_idle(s) ||
			    s->nodes[2].n_read == 1); /* a loan of it, for a while */
	}
	sim_free(s);
}

static bool n3_receives(struct sim *s)
{
	const struct participant *p = participant_find_of_buffer(s->nodes[3].agent, SIM_BUFFER);

	return p && p->state == PARTICIPANT_MOVING;
}

/* n2 serves n3 meanwhile: one at a time. */
static void test_it_waits_for_a_node_that_is_busy(void **state)
{
	struct sim *s = one_that_let_go();
	char id[SYNC_ID_SIZE];

	(void)state;
	sim_cut(s, 0, 3, true);
	sim_run(s, 20 * S);
	s->nodes[3].rate = 8 * MIB;
	sim_lose_data(s, 3);
	assert_true(sim_run_until(s, n3_receives, 60 * S));
	assert_int_equal(pull(s, 0, false, id), 0);
	sim_run(s, 2 * S);
	assert_true(n3_receives(s));
	assert_false(n1_ended(s));
	assert_end(s, id, "committed", "");
	assert_int_equal(sim_serves(s, 1), 1);
	sim_free(s);
}

/* By itself: the push has an end of its own. */
static bool pull_ended(struct sim *s)
{
	const json_t *end = s->nodes[1].end;

	return end && strcmp(json_string_value(json_object_get(end, "kind")), "pull") == 0;
}

/* The user of a waiting pull gets what a push delivers, unless another version is asked for. */
static void test_a_push_that_comes_before_it_delivers_it(void **state)
{
	for (uint64_t number = 0; number < 2; number++) {
		struct sim *s = one_that_let_go();
		char id[SYNC_ID_SIZE], sync[SYNC_ID_SIZE];

		(void)state;
		s->nodes[2].is_silent = true;
		assert_int_equal(pull(s, number, false, id), 0);
		sim_run(s, S);
		sim_forget_end(s, 1);
		assert_int_equal(sim_push(s, 0, sync), 0);
		assert_true(sim_run_until(s, pull_ended, 60 * S));
		assert_end(s, id, number ? "failed" : "committed",
			   number ? "n0001 has committed a newer version meanwhile" : "");
		sim_run(s, 5 * S);
		assert_int_equal(sim_serves(s, 1), 3);
		sim_free(s);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_no_other_node_is_asked),
		cmocka_unit_test(test_a_plan_moves_nothing),
		cmocka_unit_test(test_a_node_that_cannot_plan_is_refused_before_bytes_move),
		cmocka_unit_test(test_a_node_that_never_answers_ends_it),
		cmocka_unit_test(test_a_node_that_is_lost_ends_it),
		cmocka_unit_test(test_it_can_be_cancelled_before_and_while_bytes_move),
		cmocka_unit_test(test_it_waits_for_a_node_that_is_busy),
		cmocka_unit_test(test_a_push_that_comes_before_it_delivers_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * Plans in a simulated world: the planned bytes are those that move, and a plan alone leaves
 * nothing behind.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "ipc/base/num.h"
#include "server/sync/base/json_packet.h"
#include "server/sync/base/planned_bytes.h"
#include "sim.h"
#include "sim_jobs.h"

#define S SIM_SECOND
#define MIB ((uint64_t)1 << 20)

static struct sim *world_of(unsigned n, unsigned n_addresses)
{
	struct sim *s = sim_new(&(struct sim_options){
		.n_nodes = n, .policy = POLICY_ALL, .seed = n + 33, .n_addresses = n_addresses});

	sim_run(s, S);
	return s;
}

static struct sim *world(unsigned n, enum policy policy)
{
	struct sim *s = sim_new(
		&(struct sim_options){.n_nodes = n, .policy = policy, .seed = n + 33});

	sim_run(s, S); /* they connect and exchange heads */
	return s;
}

static void await_end(struct sim *s, const char *outcome)
{
	assert_true(sim_run_until(s, sim_ended, 300 * S));
	if (strcmp(s->nodes[0].outcome, outcome) != 0)
		print_message("%s\n", s->nodes[0].why);
	assert_string_equal(s->nodes[0].outcome, outcome);
}

static void plan_and_wait(struct sim *s, const char *outcome)
{
	char sync[SYNC_ID_SIZE];

	assert_int_equal(sim_plan(s, 0, sync), 0);
	await_end(s, outcome);
}

static void push_and_wait(struct sim *s, const char *outcome)
{
	char sync[SYNC_ID_SIZE];

	assert_int_equal(sim_push(s, 0, sync), 0);
	await_end(s, outcome);
}

static uint64_t planned(struct sim *s, const char *key)
{
	const json_t *n = json_object_get(s->nodes[0].plan, key);

	assert_true(json_is_integer(n));
	return (uint64_t)json_integer_value(n);
}

static const json_t *link_of(struct sim *s, size_t i)
{
	return json_array_get(json_object_get(s->nodes[0].plan, "links"), i);
}

static size_t n_links(struct sim *s)
{
	return json_array_size(json_object_get(s->nodes[0].plan, "links"));
}

static void assert_text(const json_t *o, const char *key, const char *expected)
{
	assert_string_equal(json_string_value(json_object_get(o, key)), expected);
}

static void assert_number(const json_t *o, const char *key, uint64_t expected)
{
	assert_int_equal(json_integer_value(json_object_get(o, key)), expected);
}

/* Each node once, from the publisher on, and `n_bytes` over each link. */
static void assert_is_chain(struct sim *s, uint64_t n_bytes)
{
	const char *from = s->nodes[0].name;

	assert_text(s->nodes[0].plan, "schedule", "chain");
	for (size_t i = 0; i < n_links(s); i++) {
		const json_t *link = link_of(s, i);

		assert_text(link, "from", from);
		from = json_string_value(json_object_get(link, "to"));
		for (size_t j = 0; j < i; j++)
			assert_string_not_equal(from, json_string_value(
							      json_object_get(link_of(s, j), "to")));
		assert_number(link, "bytes", n_bytes);
		assert_number(link, "planned", tcp_planned(n_bytes));
	}
	assert_int_equal(planned(s, "n_links"), n_links(s));
	assert_int_equal(planned(s, "total"), n_links(s) * n_bytes);
	assert_int_equal(planned(s, "planned"), n_links(s) * tcp_planned(n_bytes));
	assert_int_equal(planned(s, "changed"), n_bytes);
	assert_int_equal(planned(s, "size"), s->options.n_bytes);
}

static void test_a_push_says_before_what_every_member_gets(void **state)
{
	(void)state;
	for (unsigned n = 2; n <= 9; n++) {
		struct sim *s = world(n, POLICY_ALL);

		push_and_wait(s, "committed");
		assert_int_equal(n_links(s), n - 1);
		assert_is_chain(s, s->options.n_bytes);
		for (unsigned i = 1; i < n; i++)
			assert_int_equal(s->nodes[i].n_received, s->options.n_bytes);
		sim_free(s);
	}
}

static void test_several_addresses_carry_a_stripe_of_each_link(void **state)
{
	struct sim *s = world_of(3, 2);
	uint64_t wire = tcp_planned_striped(s->options.n_bytes, MIB, 2);

	(void)state;
	assert_int_equal(wire, s->options.n_bytes + 2 * (192 + 16) + s->options.n_bytes / MIB * 16);
	push_and_wait(s, "committed");
	for (size_t i = 0; i < n_links(s); i++) {
		assert_number(link_of(s, i), "stripes", 2);
		assert_number(link_of(s, i), "planned", wire);
	}
	assert_int_equal(planned(s, "planned"), 2 * wire);
	sim_free(s);
}

/* Each part would be so slow that it looked stalled. */
static void test_a_rate_that_is_low_is_not_split(void **state)
{
	struct sim *s = world_of(2, 2);
	cleanup(json_freep) json_t *request = json_pack("{s:s, s:I}", "buffer", "m", "max_rate",
							(json_int_t)2 * STRIPES_RATE_MIN - 1);
	char sync[SYNC_ID_SIZE], why[WHY_SIZE];

	(void)state;
	sim_add_version(&s->nodes[0], "m", ++s->n_contents, s->options.n_bytes);
	assert_int_equal(agent_plan(s->nodes[0].agent, request, sync, why), 0);
	await_end(s, "planned");
	assert_number(link_of(s, 0), "stripes", 1);
	sim_free(s);
}

/* All that was ever recorded about replicas. */
static char *dump_recorded(const json_t *commit_log)
{
	cleanup(json_freep) json_t *rows = json_array();
	const json_t *piece;
	size_t i;

	json_array_foreach(commit_log, i, piece)
		json_array_extend(rows, json_object_get(piece, "heads"));
	return json_dumps(rows, 0);
}

static void test_a_plan_is_that_of_the_push_and_moves_nothing(void **state)
{
	struct sim *s = world(4, POLICY_ALL);
	char *told, *done, *before, *after;

	(void)state;
	push_and_wait(s, "committed");
	assert_true(sim_run_until(s, sim_is_converged, 60 * S));
	before = dump_recorded(s->nodes[0].commit_log);
	plan_and_wait(s, "planned");
	assert_is_chain(s, s->options.n_bytes);
	told = json_dumps(json_object_get(s->nodes[0].plan, "links"), 0);
	for (unsigned i = 0; i < 4; i++)
		assert_text(json_array_get(json_object_get(s->nodes[0].end, "nodes"), i), "state",
			    "planned");
	assert_null(json_object_get(s->nodes[0].end, "error"));
	sim_run(s, 30 * S);
	assert_true(sim_is_idle(s));
	after = dump_recorded(s->nodes[0].commit_log);
	assert_string_equal(before, after);
	for (unsigned i = 1; i < 4; i++) {
		assert_string_equal(s->nodes[i].outcome, "planned");
		assert_int_equal(sim_serves(s, i), 1);
		assert_int_equal(s->nodes[i].n_received, s->options.n_bytes);
	}
	push_and_wait(s, "committed");
	done = json_dumps(json_object_get(s->nodes[0].plan, "links"), 0);
	assert_string_equal(told, done);
	free(told);
	free(done);
	free(before);
	free(after);
	sim_free(s);
}

static void test_a_plan_leaves_the_way_to_a_push_at_once(void **state)
{
	struct sim *s = world(4, POLICY_ALL);

	(void)state;
	for (unsigned i = 0; i < 5; i++)
		plan_and_wait(s, "planned");
	push_and_wait(s, "committed");
	assert_true(sim_run_until(s, sim_is_converged, 60 * S));
	sim_free(s);
}

static void test_a_plan_fails_as_the_push_would(void **state)
{
	struct sim *s = world(4, POLICY_ALL);
	char sync[SYNC_ID_SIZE];

	(void)state;
	s->nodes[2].sinks_fail = true;
	plan_and_wait(s, "failed");
	assert_non_null(strstr(s->nodes[0].why, "n0002 refused: "));
	assert_int_equal(sim_plan(s, 1, sync), -EPERM);
	sim_free(s);

	s = world(4, POLICY_QUORUM);
	s->nodes[2].sinks_fail = true;
	plan_and_wait(s, "planned");
	assert_int_equal(n_links(s), 2);
	assert_is_chain(s, s->options.n_bytes);
	sim_free(s);
}

static void test_an_epoch_says_what_is_left(void **state)
{
	struct sim *s = world(4, POLICY_ALL);

	(void)state;
	s->nodes[2].n_corrupt = 1;
	push_and_wait(s, "committed");
	/* The corrupted leaf, and only to the nodes that lack it. */
	assert_int_equal(planned(s, "epoch"), 2);
	assert_is_chain(s, MIB);
	for (unsigned i = 1; i < 4; i++)
		assert_true(s->nodes[i].n_received == s->options.n_bytes ||
			    s->nodes[i].n_received == s->options.n_bytes + MIB);
	sim_free(s);
}

static void test_the_time_is_told_where_rates_were_measured(void **state)
{
	struct sim *s = world(2, POLICY_ALL);
	uint64_t seconds;

	(void)state;
	s->nodes[1].rate = 16 * MIB;
	push_and_wait(s, "committed");
	assert_true(json_is_null(json_object_get(s->nodes[0].plan, "takes_ns")));
	plan_and_wait(s, "planned");
	seconds = s->options.n_bytes / (16 * MIB);
	assert_true(planned(s, "takes_ns") >= seconds * S * 9 / 10);
	assert_true(planned(s, "takes_ns") <= seconds * S * 12 / 10);
	sim_free(s);
}

static struct {
	const char *type;
	unsigned victim;
	bool happened;
} loss;

static bool kill_at(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	const char *type = json_string_value(json_object_get(message, "type"));

	if (!loss.happened && strcmp(type, loss.type) == 0 &&
	    (!loss.victim || from == loss.victim || to == loss.victim)) {
		loss.happened = true;
		sim_kill(s, loss.victim);
	}
	return true;
}

static void test_a_loss_at_any_step_of_a_plan_leaves_nothing(void **state)
{
	static const char *const STEPS[] = {"prepare", "want", "ready", "abort"};
	char sync[SYNC_ID_SIZE];

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(STEPS); i++)
		for (unsigned victim = 0; victim <= 2; victim += 2) {
			struct sim *s = world(4, POLICY_QUORUM);

			push_and_wait(s, "committed");
			sim_run(s, S);
			loss.type = STEPS[i];
			loss.victim = victim;
			loss.happened = false;
			s->on_message = kill_at;
			assert_int_equal(sim_plan(s, 0, sync), 0);
			sim_run(s, 60 * S);
			assert_true(loss.happened);
			assert_true(sim_is_idle(s));
			if (victim)
				assert_string_equal(s->nodes[0].outcome, "planned");
			sim_start(s, victim);
			sim_run(s, 60 * S);
			for (unsigned n = 0; n < 4; n++)
				assert_int_equal(sim_serves(s, n), n ? 1 : 2);
			sim_free(s);
		}
}

static void test_links_of_many_nodes_come_in_pieces_that_fit(void **state)
{
	struct sim *s = world(300, POLICY_ALL);
	json_t *piece = json_array();

	(void)state;
	plan_and_wait(s, "planned");
	assert_int_equal(n_links(s), 299);
	assert_is_chain(s, s->options.n_bytes);
	for (size_t i = 0; i < 128; i++)
		json_array_append_new(
			piece,
			json_pack("{s:s, s:s, s:I, s:I}", "from",
				  "a-name-that-is-63-bytes-long-and-no-node-can-have-a-longer-one.",
				  "to",
				  "a-name-that-is-63-bytes-long-and-no-node-can-have-a-longer-one.",
				  "bytes", (json_int_t)INT64_MAX, "planned", (json_int_t)INT64_MAX));
	assert_true(json_dumpb(piece, NULL, 0, JSON_COMPACT) < JSON_PACKET_SIZE_MAX - 4096);
	json_decref(piece);
	sim_free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_push_says_before_what_every_member_gets),
		cmocka_unit_test(test_several_addresses_carry_a_stripe_of_each_link),
		cmocka_unit_test(test_a_rate_that_is_low_is_not_split),
		cmocka_unit_test(test_a_plan_is_that_of_the_push_and_moves_nothing),
		cmocka_unit_test(test_a_plan_leaves_the_way_to_a_push_at_once),
		cmocka_unit_test(test_a_plan_fails_as_the_push_would),
		cmocka_unit_test(test_an_epoch_says_what_is_left),
		cmocka_unit_test(test_the_time_is_told_where_rates_were_measured),
		cmocka_unit_test(test_a_loss_at_any_step_of_a_plan_leaves_nothing),
		cmocka_unit_test(test_links_of_many_nodes_come_in_pieces_that_fit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

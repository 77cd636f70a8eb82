/*
 * Members with false answers, in time and of a valid form. They may harm their own part in a push,
 * but not that of others.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "ipc/base/num.h"
#include "server/sync/base/json_packet.h"
#include "sim.h"
#include "sim_jobs.h"

#define S SIM_SECOND
#define N_MAX 16
#define ELSEWHERE "192.0.2.9"

enum lie {
	LIE_QUEUED, /* it always has others to prepare before */
	/* Ways to report a broken epoch. */
	LIE_FAR, /* blames a link to it that was not planned, at once */
	LIE_EARLY, /* blames its own link before that is connected */
	LIE_BEFORE, /* blames the link to it after that was connected */
	LIE_BEHIND, /* blames the link from it */
	LIE_ADDRESS, /* an address that some programs can parse, but no engine */
	LIE_ELSEWHERE, /* an address that must not be dialled */
	LIE_FEWER, /* it has two addresses, and then announces fewer */
	LIE_SECOND, /* its second address is invalid */
	LIE_ALSO_ELSEWHERE, /* its second address must not be dialled */
};

struct hostile {
	unsigned first; /* this node and all after it lie */
	enum lie lie;
	unsigned n_lies;
	char from[N_MAX][NODE_MAX + 1]; /* the node before each of them */
};

/* Sends to node 0, the coordinator. */
static void say(struct sim *s, unsigned node, const json_t *about, const char *type, json_t *fields)
{
	static const char *const SAME[] = {"sync", "epoch"};

	json_object_set_new(fields, "type", json_string(type));
	for (unsigned i = 0; i < ARRAY_LEN(SAME); i++)
		if (json_object_get(about, SAME[i]))
			json_object_set(fields, SAME[i], json_object_get(about, SAME[i]));
	agent_on_message(s->nodes[0].agent, node - 1, fields);
	json_decref(fields);
}

static json_t *all_of_it(const struct sim *s)
{
	return json_pack("[[II]]", (json_int_t)0, (json_int_t)s->options.n_bytes);
}

static void say_broken(struct sim *s, unsigned node, const json_t *about, const char *from,
		       const char *to)
{
	((struct hostile *)s->userdata)->n_lies++;
	say(s, node, about, "broken",
	    json_pack("{s:s, s:s?, s:s?, s:o}", "why", "no byte came", "from", from, "to", to,
		      "missing", all_of_it(s)));
}

static json_t *stripes_of(const struct hostile *h)
{
	if (h->lie != LIE_SECOND && h->lie != LIE_ALSO_ELSEWHERE)
		return NULL;
	return json_pack("[{s:s, s:i}, {s:s, s:i}]", "address", "127.0.0.1", "port", 7, "address",
			 h->lie == LIE_SECOND ? "localhost" : ELSEWHERE, "port", 8);
}

static void answer_open(struct sim *s, unsigned node, const json_t *message)
{
	struct hostile *h = s->userdata;

	snprintf(h->from[node], sizeof(h->from[node]), "%s",
		 json_string_value(json_object_get(message, "from")));
	if (h->lie == LIE_FAR)
		say_broken(s, node, message, s->nodes[0].name, s->nodes[node].name);
	else if (h->lie == LIE_EARLY)
		say_broken(s, node, message, h->from[node], s->nodes[node].name);
	else
		say(s, node, message, "opened",
		    json_pack("{s:s, s:i, s:o, s:o*}", "address",
			      h->lie == LIE_ADDRESS     ? "127.1"
			      : h->lie == LIE_ELSEWHERE ? ELSEWHERE
							: "127.0.0.1",
			      "port", 7, "missing", all_of_it(s), "stripes", stripes_of(h)));
	h->n_lies += h->lie >= LIE_ADDRESS;
}

static void answer_start(struct sim *s, unsigned node, const json_t *message)
{
	struct hostile *h = s->userdata;
	const char *to = json_string_value(json_object_get(json_object_get(message, "next"), "node"));

	if (h->lie == LIE_BEHIND && to)
		say_broken(s, node, message, s->nodes[node].name, to);
	else
		say_broken(s, node, message, h->from[node], s->nodes[node].name);
}

/* Messages to hostile members do not reach their agents. */
static bool lie(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	const char *type = json_string_value(json_object_get(message, "type"));
	const struct hostile *h = s->userdata;

	if (to < h->first || from != 0 || !json_object_get(message, "sync"))
		return true;
	if (strcmp(type, "prepare") == 0 && h->lie == LIE_QUEUED)
		say(s, to, message, "queued", json_object());
	else if (strcmp(type, "prepare") == 0)
		say(s, to, message, "ready",
		    json_pack("{s:o, s:i}", "missing", all_of_it(s), "n_addresses",
			      h->lie >= LIE_FEWER ? 2 : 1));
	else if (strcmp(type, "open") == 0 && h->lie != LIE_QUEUED)
		answer_open(s, to, message);
	else if (strcmp(type, "start") == 0)
		answer_start(s, to, message);
	return false;
}

static struct sim *world(unsigned n, enum policy policy, struct hostile *h)
{
	struct sim *s = sim_new(&(struct sim_options){.n_nodes = n, .policy = policy, .seed = n});

	sim_run(s, S);
	s->on_message = lie;
	s->userdata = h;
	s->untrusted = ELSEWHERE;
	return s;
}

static void assert_outcome(const struct sim *s, const char *outcome)
{
	if (strcmp(s->nodes[0].outcome, outcome) != 0)
		print_message("%s\n", s->nodes[0].why);
	assert_string_equal(s->nodes[0].outcome, outcome);
}

static bool honest_serve_it(struct sim *s)
{
	const struct hostile *h = s->userdata;

	for (unsigned i = 0; i < h->first; i++)
		if (sim_serves(s, i) != s->n_contents)
			return false;
	return true;
}

static struct sim *pushed(unsigned n, struct hostile *h)
{
	struct sim *s = world(n, POLICY_QUORUM, h);
	char sync[SYNC_ID_SIZE];

	assert_int_equal(sim_push(s, 0, sync), 0);
	assert_true(sim_run_until(s, sim_ended, 300 * S));
	assert_outcome(s, "committed");
	assert_true(h->n_lies > 0);
	return s;
}

static void assert_honest_get_it(unsigned n, enum lie lie)
{
	struct hostile h = {.first = n - 1, .lie = lie};
	struct sim *s = pushed(n, &h);

	assert_true(honest_serve_it(s));
	sim_free(s);
}

static void test_who_breaks_links_that_were_not_to_be_made_is_lost_alone(void **state)
{
	(void)state;
	assert_honest_get_it(7, LIE_FAR);
	assert_honest_get_it(7, LIE_EARLY);
}

static void assert_lost_at_once(enum lie lie)
{
	struct hostile h = {.first = 6, .lie = lie};
	struct sim *s = pushed(7, &h);

	assert_true(honest_serve_it(s));
	assert_int_equal(h.n_lies, 1);
	sim_free(s);
}

static void test_who_is_nowhere_is_lost_alone_and_at_once(void **state)
{
	(void)state;
	assert_lost_at_once(LIE_ADDRESS);
	assert_lost_at_once(LIE_FEWER);
	assert_lost_at_once(LIE_SECOND);
}

static void test_who_is_where_nobody_may_dial_is_lost_alone_and_at_once(void **state)
{
	(void)state;
	assert_lost_at_once(LIE_ELSEWHERE);
	assert_lost_at_once(LIE_ALSO_ELSEWHERE);
}

static void test_who_breaks_links_of_its_own_is_lost_alone(void **state)
{
	(void)state;
	assert_honest_get_it(9, LIE_BEFORE);
	assert_honest_get_it(9, LIE_BEHIND);
}

/* Nodes that they blame may be lost to the push with them, and are repaired. */
static void test_three_that_break_links_of_their_own_do_not_keep_a_push_from_the_others(void **state)
{
	(void)state;
	for (enum lie lie = LIE_BEFORE; lie <= LIE_BEHIND; lie++) {
		struct hostile h = {.first = 9, .lie = lie};
		struct sim *s = pushed(12, &h);

		assert_true(sim_run_until(s, honest_serve_it, 300 * S));
		sim_free(s);
	}
}

/* --- Busy members ------------------------------------------------------------------------------ */

static void test_who_stays_busy_is_lost_alone(void **state)
{
	(void)state;
	for (enum policy policy = POLICY_QUORUM; policy <= POLICY_EACH; policy++) {
		struct hostile h = {.first = 3, .lie = LIE_QUEUED};
		struct sim *s = world(4, policy, &h);
		char sync[SYNC_ID_SIZE];

		assert_int_equal(sim_push(s, 0, sync), 0);
		assert_true(sim_run_until(s, sim_ended, 60 * S));
		assert_outcome(s, "committed");
		assert_true(honest_serve_it(s));
		sim_free(s);
	}
}

static void test_who_was_busy_for_long_leaves_as_much_time_for_the_bytes(void **state)
{
	struct hostile h = {.first = 2, .lie = LIE_QUEUED};
	struct sim *s = world(3, POLICY_ALL, &h);
	char sync[SYNC_ID_SIZE];
	cleanup(json_freep) json_t *about = NULL;

	(void)state;
	assert_int_equal(sim_push(s, 0, sync), 0);
	sim_run(s, 100 * S);
	assert_false(sim_ended(s));
	about = json_pack("{s:s}", "sync", sync);
	say(s, 2, about, "want", json_pack("{s:[]}", "blobs"));
	say(s, 2, about, "ready", json_pack("{s:o}", "missing", all_of_it(s)));
	assert_true(sim_run_until(s, sim_ended, 60 * S));
	/* The reason is its missing engine, and not the total time. */
	assert_non_null(strstr(s->nodes[0].why, "n0002 did not answer for 15 s while links were"));
	sim_free(s);
}

#define N_BUFFERS 10

static void push_many(struct sim *s)
{
	for (unsigned i = 0; i < N_BUFFERS; i++) {
		cleanup(json_freep) json_t *request = json_object();
		char buffer[16], sync[SYNC_ID_SIZE], why[WHY_SIZE];

		snprintf(buffer, sizeof(buffer), "b%u", i);
		sim_add_version(&s->nodes[0], buffer, ++s->n_contents, s->options.n_bytes);
		json_object_set_new(request, "buffer", json_string(buffer));
		assert_int_equal(agent_push(s->nodes[0].agent, request, sync, why), 0);
	}
}

static unsigned n_served(struct sim *s)
{
	cleanup(json_freep) json_t *rows = agent_replicas(s->nodes[1].agent, AGENT_SELF);
	const json_t *row;
	unsigned n = 0;
	size_t i;

	json_array_foreach(rows, i, row)
		n += strcmp(json_string_value(json_object_get(row, "state")), "serving") == 0;
	return n;
}

static bool n1_serves_some(struct sim *s)
{
	return n_served(s) > 0;
}

static bool n1_serves_all(struct sim *s)
{
	return n_served(s) == N_BUFFERS;
}

static void test_who_asks_for_many_repairs_and_stays_busy_does_not_take_all_turns(void **state)
{
	struct hostile h = {.first = 2, .lie = LIE_QUEUED};
	struct sim *s = world(3, POLICY_QUORUM, &h);

	(void)state;
	s->on_message = NULL;
	sim_kill(s, 1);
	sim_cut(s, 1, 2, true);
	sim_run(s, 30 * S);
	push_many(s);
	sim_run(s, 60 * S);
	assert_true(sim_is_idle(s));
	s->on_message = lie;
	for (unsigned i = 0; i < 8; i++) {
		char buffer[16];

		snprintf(buffer, sizeof(buffer), "b%u", i);
		say(s, 2, NULL, "catch-up",
		    json_pack("{s:s, s:s, s:i, s:i}", "buffer", buffer, "group", "main", "term", 0,
			      "number", 0));
	}
	sim_run(s, S);
	sim_start(s, 1);
	assert_true(sim_run_until(s, n1_serves_some, 10 * S));
	assert_true(sim_run_until(s, n1_serves_all, 90 * S));
	sim_free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_who_breaks_links_that_were_not_to_be_made_is_lost_alone),
		cmocka_unit_test(test_who_is_nowhere_is_lost_alone_and_at_once),
		cmocka_unit_test(test_who_is_where_nobody_may_dial_is_lost_alone_and_at_once),
		cmocka_unit_test(test_who_breaks_links_of_its_own_is_lost_alone),
		cmocka_unit_test(
			test_three_that_break_links_of_their_own_do_not_keep_a_push_from_the_others),
		cmocka_unit_test(test_who_stays_busy_is_lost_alone),
		cmocka_unit_test(test_who_was_busy_for_long_leaves_as_much_time_for_the_bytes),
		cmocka_unit_test(
			test_who_asks_for_many_repairs_and_stays_busy_does_not_take_all_turns),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Replicas: the order of versions, and claims of peers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/num.h"
#include "server/sync/base/json_packet.h"
#include "server/sync/coordinator/sync.h"
#include "server/sync/state/group.h"
#include "sim_jobs.h"

#define S SIM_SECOND

static bool has_outcome(const struct sim_node *n, const char *outcome)
{
	if (strcmp(n->outcome, outcome) != 0)
		print_message("%s: '%s' %s\n", n->name, n->outcome, n->why);
	return strcmp(n->outcome, outcome) == 0;
}

static void assert_converges(struct sim *s, uint64_t content)
{
	assert_true(sim_run_until(s, sim_is_converged, 300 * S));
	assert_int_equal(sim_serves(s, 0), content);
}

/* --- The order of versions ---------------------------------------------------------------------- */

static void test_no_two_publishers_have_the_same_term(void **state)
{
	static const char *const NAMES[] = {"b", "c", "a"};
	const struct group g = {.publishers = NAMES, .n_publishers = ARRAY_LEN(NAMES)};

	(void)state;
	for (uint64_t least = 0; least < 12; least++) {
		uint64_t terms[ARRAY_LEN(NAMES)];

		for (unsigned i = 0; i < ARRAY_LEN(NAMES); i++) {
			terms[i] = group_term(&g, NAMES[i], least);
			assert_in_range(terms[i], least, least + 2);
			assert_int_equal(group_term(&g, NAMES[i], terms[i]), terms[i]);
			for (unsigned j = 0; j < i; j++)
				assert_int_not_equal(terms[i], terms[j]);
		}
	}
	assert_int_equal(group_term(&g, "a", 1), 1);
	assert_int_equal(group_term(&g, "c", 1), 3);
}

/* Each sees but one member, as a cut between two racks does. */
static void test_publishers_that_do_not_see_each_other_mint_other_pairs(void **state)
{
	struct sim *s = sim_new(&(struct sim_options){
		.n_nodes = 4, .n_publishers = 2, .policy = POLICY_EACH, .seed = 5});
	char sync[SYNC_ID_SIZE];

	(void)state;
	sim_run(s, S);
	for (unsigned i = 0; i < 4; i++)
		for (unsigned j = 0; j < i; j++)
			sim_cut(s, i, j, i % 2 != j % 2);
	sim_run(s, 30 * S);
	assert_int_equal(sim_push(s, 0, sync), 0);
	assert_int_equal(sim_push(s, 1, sync), 0);
	sim_run(s, 30 * S);
	assert_true(has_outcome(&s->nodes[0], "committed"));
	assert_true(has_outcome(&s->nodes[1], "committed"));
	assert_int_equal(sim_serves(s, 2), 1);
	assert_int_equal(sim_serves(s, 3), 2);
	assert_int_not_equal(s->pairs[1][0], s->pairs[2][0]);
	for (unsigned i = 0; i < 4; i++)
		for (unsigned j = 0; j < i; j++)
			sim_cut(s, i, j, false);
	assert_converges(s, s->pairs[1][0] > s->pairs[2][0] ? 1 : 2);
	sim_free(s);
}

/* --- The record --------------------------------------------------------------------------------- */

/* Each takes two waits for a disk, and the loop waits with it. */
static void test_a_commit_waits_for_the_record_once(void **state)
{
	struct sim *s = sim_new(&(struct sim_options){.n_nodes = 3, .policy = POLICY_ALL, .seed = 5});
	char sync[SYNC_ID_SIZE];

	(void)state;
	sim_run(s, S);
	assert_int_equal(sim_push(s, 0, sync), 0);
	assert_true(sim_run_until(s, sim_ended, 30 * S));
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(s->nodes[i].n_saves, 1);
	sim_run(s, 30 * S);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(s->nodes[i].n_saves, 2); /* the result, and the served version */
	sim_free(s);
}

static void push_buffer(struct sim *s, const char *buffer)
{
	cleanup(json_freep) json_t *request = json_pack("{s:s}", "buffer", buffer);
	char sync[SYNC_ID_SIZE], why[WHY_SIZE];

	sim_forget_end(s, 0);
	sim_add_version(&s->nodes[0], buffer, ++s->n_contents, s->options.n_bytes);
	assert_int_equal(agent_push(s->nodes[0].agent, request, sync, why), 0);
	assert_true(sim_run_until(s, sim_ended, 60 * S));
	assert_true(has_outcome(&s->nodes[0], "committed"));
	sim_run(s, 10 * S);
}

/* The id of each committed version, and if the node has it. */
static json_t *known(struct sim *s, unsigned node)
{
	cleanup(json_freep) json_t *history = agent_history(s->nodes[node].agent, 1000);
	json_t *rows = agent_replicas(s->nodes[node].agent, AGENT_SELF), *row;
	size_t i;

	json_array_foreach(rows, i, row) json_object_del(row, "state");
	json_array_extend(rows, history);
	return rows;
}

/* Restores from the last pieces alone, and from earlier ones, of one buffer and of several. */
static void test_a_record_in_pieces_is_as_good_as_one_that_is_whole(void **state)
{
	static const char *const BUFFERS[] = {"a", "b", "a", "a", "b", "c",
					      "a", "b", "b", "c", "a"};
	struct sim *s = sim_new(&(struct sim_options){.n_nodes = 2, .policy = POLICY_ALL, .seed = 5});
	size_t n_most = 0;

	(void)state;
	sim_run(s, S);
	for (size_t i = 0; i < ARRAY_LEN(BUFFERS); i++) {
		cleanup(json_freep) json_t *before = NULL, *after = NULL;
		const json_t *piece;

		push_buffer(s, BUFFERS[i]);
		piece = json_array_get(s->nodes[1].commit_log, 1);
		if (piece)
			assert_in_range(json_array_size(json_object_get(piece, "heads")), 0, 1);
		n_most = json_array_size(s->nodes[1].commit_log) > n_most
				 ? json_array_size(s->nodes[1].commit_log)
				 : n_most;
		before = known(s, 1);
		sim_kill(s, 1);
		sim_start(s, 1);
		after = known(s, 1);
		assert_true(json_equal(before, after));
		sim_run(s, 10 * S);
	}
	assert_int_equal(n_most, 4);
	sim_free(s);
}

/* --- Claims of peers --------------------------------------------------------------------------- */

/* A claim of node `from`: `n` buffers of these names, from `first` on, at this version_id. */
static void claim(struct sim *s, unsigned to, unsigned from, const char *name, unsigned n,
		  unsigned number)
{
	json_t *rows = json_array();
	cleanup(json_freep)
		json_t *message = json_pack("{s:s, s:o}", "type", "heads", "heads", rows);
	char buffer[64], root[65];

	memset(root, '7', 64);
	root[64] = '\0';
	for (unsigned i = 0; i < n; i++) {
		snprintf(buffer, sizeof(buffer), n > 1 ? "%s%u" : "%s", name, i);
		json_array_append_new(rows, json_pack("{s:s, s:s, s:i, s:i, s:s}", "buffer", buffer,
						      "group", "main", "term", number, "number",
						      number, "root", root));
	}
	agent_on_message(s->nodes[to].agent, from < to ? from : from - 1, message);
}

static size_t n_claims(struct sim *s, unsigned of, unsigned from)
{
	cleanup(json_freep)
		json_t *rows = agent_replicas(s->nodes[of].agent, from < of ? from : from - 1);

	return json_array_size(rows);
}

static void test_invented_names_keep_no_version_out(void **state)
{
	struct sim *s = sim_new(&(struct sim_options){.n_nodes = 7, .policy = POLICY_ALL, .seed = 5});
	char sync[SYNC_ID_SIZE], name[16];

	(void)state;
	sim_run(s, S);
	for (unsigned from = 2; from < 7; from++) {
		snprintf(name, sizeof(name), "%u-", from);
		claim(s, 1, from, name, 1000, 1);
		snprintf(name, sizeof(name), "more%u-", from);
		claim(s, 1, from, name, 1000, 1);
		assert_in_range(n_claims(s, 1, from), 0, 1024);
	}
	assert_int_equal(sim_push(s, 0, sync), 0);
	assert_true(sim_run_until(s, sim_ended, 30 * S));
	assert_true(has_outcome(&s->nodes[0], "committed"));
	sim_free(s);
}

static void test_many_leaps_use_up_no_numbers(void **state)
{
	struct sim *s = sim_new(&(struct sim_options){.n_nodes = 2, .policy = POLICY_ALL, .seed = 5});
	const unsigned leap = 1u << 20;
	char sync[SYNC_ID_SIZE];

	(void)state;
	sim_run(s, S);
	for (unsigned i = 1; i <= 1000; i++)
		claim(s, 0, 1, SIM_BUFFER, 1, i * leap);
	assert_int_equal(sim_push(s, 0, sync), 0);
	assert_true(sim_run_until(s, sim_ended, 30 * S));
	assert_true(has_outcome(&s->nodes[0], "committed"));
	assert_in_range(s->pairs[1][0], leap, leap + 2);
	assert_int_equal(s->pairs[1][1], leap + 1);
	sim_free(s);
}

static void test_who_has_nothing_of_a_buffer_makes_nobody_remember_its_name(void **state)
{
	struct sim *s = sim_new(&(struct sim_options){.n_nodes = 3, .policy = POLICY_ALL, .seed = 5});

	(void)state;
	sim_run(s, S);
	claim(s, 1, 2, "nothing", 1024, 0);
	claim(s, 1, 2, "something", 100, 1);
	assert_int_equal(n_claims(s, 1, 2), 100);
	sim_free(s);
}

struct liar {
	unsigned node;
	unsigned n_asked;
};

/* It claims a version that does not exist, and does not answer requests for it. */
static bool lie(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	struct liar *l = s->userdata;
	const char *type = json_string_value(json_object_get(message, "type"));

	if (from == l->node && strcmp(type, "heads") == 0) {
		claim(s, to, from, SIM_BUFFER, 1, 1000);
		return false;
	}
	l->n_asked += to == l->node && strcmp(type, "catch-up") == 0;
	return to != l->node || strcmp(type, "catch-up") != 0;
}

static bool n3_serves_the_newest(struct sim *s)
{
	return sim_serves(s, 3) == s->n_contents;
}

static void test_who_claims_what_it_does_not_bring_is_asked_last(void **state)
{
	struct sim *s = sim_new(
		&(struct sim_options){.n_nodes = 4, .policy = POLICY_QUORUM, .seed = 5});
	struct liar liar = {.node = 2};
	char sync[SYNC_ID_SIZE];

	(void)state;
	sim_run(s, S);
	sim_kill(s, 3);
	assert_int_equal(sim_push(s, 0, sync), 0);
	sim_run(s, 30 * S);
	assert_true(has_outcome(&s->nodes[0], "committed"));
	s->on_message = lie;
	s->userdata = &liar;
	sim_start(s, 3);
	sim_run(s, S);
	claim(s, 3, 2, SIM_BUFFER, 1, 1000);
	assert_true(sim_run_until(s, n3_serves_the_newest, 120 * S));
	/* Again, and this time the liar is known. */
	sim_cut(s, 0, 3, true);
	sim_cut(s, 1, 3, true);
	sim_run(s, 20 * S);
	assert_int_equal(sim_push(s, 0, sync), 0);
	sim_run(s, 30 * S);
	assert_true(has_outcome(&s->nodes[0], "committed"));
	assert_int_equal(sim_serves(s, 3), 1);
	sim_cut(s, 0, 3, false);
	sim_cut(s, 1, 3, false);
	/* It may have asked the only available node, and waits for that one first. */
	assert_true(sim_run_until(s, n3_serves_the_newest, 60 * S));
	assert_in_range(liar.n_asked, 1, 4);
	sim_free(s);
}

/*
 * The requested version is older than the current one: so the request is dropped, and no node has
 * failed.
 */
static void test_who_pushes_waits_no_more_for_what_it_had_asked_for(void **state)
{
	struct sim *s = sim_new(&(struct sim_options){
		.n_nodes = 3, .n_publishers = 1, .policy = POLICY_QUORUM, .seed = 5});
	struct liar liar = {.node = 2};
	const struct agent *a = s->nodes[0].agent;
	const struct replica *h;
	char sync[SYNC_ID_SIZE];

	(void)state;
	sim_run(s, S);
	s->on_message = lie;
	s->userdata = &liar;
	claim(s, 0, 2, SIM_BUFFER, 1, 1000);
	sim_run(s, S);
	h = replica_find(s->nodes[0].agent, SIM_BUFFER);
	assert_non_null(h);
	assert_int_equal(h->asked, 1);
	assert_int_equal(sim_push(s, 0, sync), 0);
	assert_true(sim_run_until(s, sim_ended, 30 * S));
	assert_true(has_outcome(&s->nodes[0], "committed"));
	assert_int_equal(h->asked, NO_PEER);
	assert_int_equal(a->peers[1].n_asked, 0);
	assert_false(replica_claim(s->nodes[0].agent, 1, h)->is_invited);
	sim_free(s);
}

static void push_to(struct sim *s, const char *group)
{
	cleanup(json_freep)
		json_t *request = json_pack("{s:s, s:s}", "buffer", SIM_BUFFER, "group", group);
	char sync[SYNC_ID_SIZE], why[WHY_SIZE];

	sim_forget_end(s, 0);
	sim_add_version(&s->nodes[0], SIM_BUFFER, ++s->n_contents, s->options.n_bytes);
	assert_int_equal(agent_push(s->nodes[0].agent, request, sync, why), 0);
	assert_true(sim_run_until(s, sim_ended, 60 * S));
	assert_true(has_outcome(&s->nodes[0], "committed"));
}

static void test_what_was_pushed_to_another_group_meanwhile_is_caught_up_with(void **state)
{
	struct sim *s = sim_new(
		&(struct sim_options){.n_nodes = 3, .policy = POLICY_QUORUM, .seed = 5});
	struct group groups[2] = {s->group, s->group};

	(void)state;
	groups[1].name = "other";
	for (unsigned i = 0; i < 3; i++) {
		sim_kill(s, i);
		s->nodes[i].config.groups = groups;
		s->nodes[i].config.n_groups = ARRAY_LEN(groups);
		sim_start(s, i);
	}
	sim_run(s, 2 * S);
	push_to(s, "main");
	assert_converges(s, 1);
	sim_kill(s, 2);
	sim_run(s, 30 * S);
	push_to(s, "other");
	sim_start(s, 2);
	assert_converges(s, 2);
	sim_free(s);
}

/*
 * Its own trouble is blamed on all nodes that it asks, and must not make them rank as low as a node
 * that never delivers.
 */
static void test_trouble_of_ones_own_does_not_end_with_asking_none_but_a_liar(void **state)
{
	struct sim *s = sim_new(
		&(struct sim_options){.n_nodes = 4, .policy = POLICY_QUORUM, .seed = 5});
	struct liar liar = {.node = 2};
	char sync[SYNC_ID_SIZE];

	(void)state;
	sim_run(s, S);
	sim_kill(s, 3);
	assert_int_equal(sim_push(s, 0, sync), 0);
	sim_run(s, 30 * S);
	assert_true(has_outcome(&s->nodes[0], "committed"));
	s->on_message = lie;
	s->userdata = &liar;
	s->nodes[3].sinks_fail = true;
	sim_start(s, 3);
	sim_run(s, S);
	claim(s, 3, 2, SIM_BUFFER, 1, 1000);
	sim_run(s, 2 * 3600 * S);
	s->nodes[3].sinks_fail = false;
	assert_true(sim_run_until(s, n3_serves_the_newest, 300 * S));
	sim_free(s);
}

/*
 * Node 2 has the newest version and claims a newer one; its behaviour in the repairs that node 3
 * requests:
 */
enum malice {
	ABORTS_AS_PLANNED,
	PREPARES_ONLY,
	VERIFIES_FOR_EVER,
	PREPARES_UNASKED, /* without any request */
};

struct rogue {
	enum malice malice;
	unsigned n_prepared;
	json_t *prepare;
	char code[32]; /* the refusal of the unrequested PREPARE */
};

static void say_as_n2(struct sim *s, const char *type, const json_t *prepare)
{
	cleanup(json_freep) json_t *message = json_pack("{s:s, s:O, s:s, s:b}", "type", type,
							"sync", json_object_get(prepare, "sync"),
							"why", "it may not have it", "planned", 1);

	agent_on_message(s->nodes[3].agent, 2, message);
}

static bool prepare_unasked(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	struct rogue *r = s->userdata;
	const char *type = json_string_value(json_object_get(message, "type"));

	if (from == 3 && to == 2 && strcmp(type, "refuse") == 0)
		snprintf(r->code, sizeof(r->code), "%s",
			 json_string_value(json_object_get(message, "code")));
	if (to != 3 || strcmp(type, "prepare") != 0)
		return from != 2 || strcmp(type, "heads") != 0;
	/* A moment before the requested one. */
	r->n_prepared++;
	json_decref(r->prepare);
	r->prepare = json_deep_copy(message);
	json_object_set_new(r->prepare, "sync", json_string("00112233445566aa"));
	agent_on_message(s->nodes[3].agent, 2, r->prepare);
	return true;
}

static bool be_a_rogue(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	struct rogue *r = s->userdata;
	const char *type = json_string_value(json_object_get(message, "type"));

	if (from == 3 && to == 2 && strcmp(type, "corrupt") == 0) {
		say_as_n2(s, "verify", r->prepare);
		return false;
	}
	if (from != 2 || to != 3)
		return true;
	if (strcmp(type, "heads") == 0) {
		claim(s, to, from, SIM_BUFFER, 1, 1000);
		return false;
	}
	if (strcmp(type, "open") == 0 && r->malice == VERIFIES_FOR_EVER)
		say_as_n2(s, "verify", r->prepare);
	if (strcmp(type, "prepare") != 0)
		return false; /* blobs are none of these */
	r->n_prepared++;
	json_decref(r->prepare);
	r->prepare = json_deep_copy(message);
	if (r->malice != ABORTS_AS_PLANNED)
		return true;
	agent_on_message(s->nodes[3].agent, 2, message);
	say_as_n2(s, "abort", message);
	return false;
}

static void catch_up_beside(struct rogue *rogue, uint64_t within_ns)
{
	struct sim *s = sim_new(&(struct sim_options){
		.n_nodes = 4, .policy = POLICY_QUORUM, .n_bytes = 16384 * MIB, .seed = 5});
	char sync[SYNC_ID_SIZE];

	for (unsigned i = 0; i < 4; i++)
		s->nodes[i].rate = 8192 * MIB;
	sim_run(s, S);
	sim_kill(s, 3);
	assert_int_equal(sim_push(s, 0, sync), 0);
	sim_run(s, 60 * S);
	assert_true(has_outcome(&s->nodes[0], "committed"));
	s->on_message = rogue->malice == PREPARES_UNASKED ? prepare_unasked : be_a_rogue;
	s->userdata = rogue;
	sim_cut(s, 0, 3, true);
	sim_cut(s, 1, 3, true);
	sim_start(s, 3);
	sim_run(s, S); /* at first it can ask no other node */
	sim_cut(s, 0, 3, false);
	sim_cut(s, 1, 3, false);
	if (!sim_run_until(s, n3_serves_the_newest, within_ns))
		fail_msg("malice %d: nothing after %ju s and %u times that it prepared",
			 rogue->malice, (uintmax_t)(within_ns / S), rogue->n_prepared);
	assert_in_range(rogue->n_prepared, 1, 6); /* some of them before there was another node */
	json_decref(rogue->prepare);
	sim_free(s);
}

static void test_who_brings_nothing_of_what_it_was_asked_for_keeps_nobody_waiting(void **state)
{
	struct rogue planned = {.malice = ABORTS_AS_PLANNED}, idle = {.malice = PREPARES_ONLY},
		     verifies = {.malice = VERIFIES_FOR_EVER};

	(void)state;
	catch_up_beside(&planned, 60 * S);
	catch_up_beside(&idle, 300 * S);
	catch_up_beside(&verifies, 300 * S);
}

static void test_a_repair_that_nobody_asked_for_is_refused(void **state)
{
	struct rogue rogue = {.malice = PREPARES_UNASKED};

	(void)state;
	catch_up_beside(&rogue, 60 * S);
	assert_string_equal(rogue.code, "unasked");
}

/* Answers like a node that is asked again while it digests: busy. */
static bool say_busy(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	json_t *busy;

	if (from != 1 ||
	    strcmp(json_string_value(json_object_get(message, "type")), "catch-up") != 0)
		return true;
	assert_int_equal(to, 0);
	busy = json_pack("{s:s, s:O, s:s, s:s}", "type", "cannot-repair", "buffer",
			 json_object_get(message, "buffer"), "code", "busy", "why",
			 "it is under way");
	agent_on_message(s->nodes[1].agent, 0, busy);
	json_decref(busy);
	++*(unsigned *)s->userdata;
	return true;
}

static void test_who_is_busy_with_what_it_was_asked_for_may_bring_it(void **state)
{
	struct sim *s = sim_new(
		&(struct sim_options){.n_nodes = 2, .policy = POLICY_EACH, .seed = 6});
	char sync[SYNC_ID_SIZE];
	unsigned n = 0;

	(void)state;
	sim_run(s, S);
	assert_int_equal(sim_push(s, 0, sync), 0);
	assert_true(sim_run_until(s, sim_ended, 120 * S));
	assert_true(has_outcome(&s->nodes[0], "committed"));
	sim_kill(s, 1);
	sim_lose_data(s, 1);
	s->on_message = say_busy;
	s->userdata = &n;
	sim_start(s, 1);
	sim_run(s, 120 * S);
	assert_int_equal(sim_serves(s, 1), s->n_contents);
	assert_int_equal(n, 1);
	sim_free(s);
}

static bool n0_attaches_for_a_repair(struct sim *s)
{
	const struct sync *sync = sync_find_of_buffer(s->nodes[0].agent, SIM_BUFFER);

	return sync && sync_is_repair(sync) && sync->phase == PHASE_ATTACH;
}

static bool n1_serves_the_first(struct sim *s)
{
	return sim_serves(s, 1) == 1;
}

static void test_who_is_to_repair_and_pushes_instead_keeps_nobody_waiting(void **state)
{
	struct sim *s = sim_new(
		&(struct sim_options){.n_nodes = 2, .policy = POLICY_EACH, .seed = 7});
	char sync[SYNC_ID_SIZE];

	(void)state;
	sim_run(s, S);
	assert_int_equal(sim_push(s, 0, sync), 0);
	assert_true(sim_run_until(s, sim_ended, 120 * S));
	assert_true(has_outcome(&s->nodes[0], "committed"));
	sim_forget_end(s, 0);
	sim_kill(s, 1);
	sim_lose_data(s, 1);
	sim_start(s, 1);
	assert_true(sim_run_until(s, n0_attaches_for_a_repair, 30 * S));
	assert_int_equal(sim_push(s, 0, sync), 0);
	assert_true(sim_kill_job(s, 0, JOB_SOURCE));
	assert_true(sim_run_until(s, sim_ended, S));
	assert_true(has_outcome(&s->nodes[0], "failed"));
	assert_true(sim_run_until(s, n1_serves_the_first, 20 * S));
	sim_free(s);
}

#define N_MANY 2500

/* A node that has committed a version of each of `n` buffers. */
static void record_many(struct sim_node *n)
{
	json_t *rows = json_object_get(json_array_get(n->commit_log, 0), "heads");
	const json_t *row = json_array_get(rows, 0);

	for (unsigned i = 1; i < N_MANY; i++) {
		json_t *copy = json_deep_copy(row);
		json_t *text = json_loads(json_string_value(json_object_get(row, "document")), 0,
					  NULL);
		char buffer[16], *dump;

		snprintf(buffer, sizeof(buffer), "b%u", i);
		json_object_set_new(text, "buffer", json_string(buffer));
		dump = json_dumps(text, JSON_COMPACT);
		json_object_set_new(copy, "document", json_string(dump));
		json_array_append_new(rows, copy);
		free(dump);
		json_decref(text);
	}
}

static bool count_rows(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	unsigned *n_rows = s->userdata;

	if (from == 0 && to == 1 &&
	    strcmp(json_string_value(json_object_get(message, "type")), "heads") == 0)
		*n_rows += (unsigned)json_array_size(json_object_get(message, "heads"));
	return from != 0; /* delivered here, and nowhere else */
}

static bool all_rows_came(struct sim *s)
{
	return *(unsigned *)s->userdata >= N_MANY;
}

static bool count_losses(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	json_t *rows = json_object_get(message, "heads"), *row;
	size_t i;

	(void)to;
	json_array_foreach(rows, i, row)
	{
		if (from == 0 && sim_number(row, "number") == 0)
			(*(unsigned *)s->userdata)++;
	}
	return true;
}

static bool count_busy(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	(void)from, (void)to;
	*(unsigned *)s->userdata += strcmp(sim_text(message, "type"), "cannot-repair") == 0 &&
				    strcmp(sim_text(message, "code"), "busy") == 0;
	return true;
}

/*
 * In a world of two, the node that has a version cannot send it to the node that lost it; `count`
 * gets their messages.
 */
static struct sim *world_without_room(bool (*count)(struct sim *s, unsigned from, unsigned to,
						    const json_t *message),
				      unsigned *n)
{
	struct sim *s = sim_new(
		&(struct sim_options){.n_nodes = 2, .policy = POLICY_EACH, .seed = 8});
	char sync[SYNC_ID_SIZE];

	sim_run(s, S);
	assert_int_equal(sim_push(s, 0, sync), 0);
	assert_true(sim_run_until(s, sim_ended, 120 * S));
	s->nodes[0].sources_fail = true;
	s->on_message = count;
	s->userdata = n;
	sim_kill(s, 1);
	sim_lose_data(s, 1);
	sim_start(s, 1);
	sim_run(s, 60 * S);
	return s;
}

/* The reason of the refusal is sent once. */
static void test_who_has_no_room_to_send_a_version_from_is_not_busy(void **state)
{
	unsigned n = 0;
	struct sim *s = world_without_room(count_busy, &n);

	(void)state;
	assert_int_equal(n, 0);
	sim_free(s);
}

static void test_who_has_no_room_to_send_a_version_from_has_not_lost_it(void **state)
{
	unsigned n = 0;
	struct sim *s = world_without_room(count_losses, &n);

	(void)state;
	assert_int_equal(sim_serves(s, 1), 0);
	assert_non_null(strstr(s->nodes[0].why, "there is no room to send it from"));
	s->nodes[0].sources_fail = false;
	sim_run(s, 120 * S);
	assert_int_equal(sim_serves(s, 1), s->n_contents);
	assert_int_equal(n, 0);
	sim_free(s);
}

static void test_all_heads_are_told_however_many_there_are(void **state)
{
	struct sim *s = sim_new(&(struct sim_options){.n_nodes = 2, .policy = POLICY_ALL, .seed = 5});
	char sync[SYNC_ID_SIZE];
	unsigned n_rows = 0;

	(void)state;
	sim_run(s, S);
	assert_int_equal(sim_push(s, 0, sync), 0);
	assert_true(sim_run_until(s, sim_ended, 30 * S));
	assert_true(has_outcome(&s->nodes[0], "committed"));
	sim_kill(s, 0);
	sim_lose_data(s, 0);
	record_many(&s->nodes[0]);
	s->on_message = count_rows;
	s->userdata = &n_rows;
	sim_start(s, 0);
	(void)sim_run_until(s, all_rows_came, S);
	assert_int_equal(n_rows, N_MANY);
	sim_free(s);
}

/* --- Shards ------------------------------------------------------------------------------------- */

static bool note_refusal(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	const char *type = json_string_value(json_object_get(message, "type"));

	(void)to;
	if (from == 1 && strcmp(type, "refuse") == 0)
		snprintf(s->userdata, 32, "%s", json_string_value(json_object_get(message, "code")));
	return true;
}

/* Both the requesting node and a participant know that version from gossip alone. */
static void test_no_shard_is_named_as_a_version_that_was_only_heard_of(void **state)
{
	struct sim *s = sim_new(&(struct sim_options){.n_nodes = 3, .n_publishers = 2, .seed = 5});
	cleanup(json_freep) json_t *request = NULL, *join = NULL;
	char sync[SYNC_ID_SIZE], why[WHY_SIZE], code[32] = "";

	(void)state;
	s->on_message = note_refusal;
	s->userdata = code;
	sim_run(s, S);
	claim(s, 1, 2, SIM_BUFFER, 1, 1);
	request = json_pack("{s:s, s:[{s:s, s:s}], s:[s], s:{}}", "buffer", SIM_BUFFER, "sources",
			    "node", "n0001", "buffer", SIM_BUFFER, "targets", "n0001", "split");
	assert_int_equal(agent_reshard(s->nodes[1].agent, request, sync, why), -EEXIST);
	join = json_pack("{s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:I, s:[], s:[s]}", "type", "join",
			 "sync", "00112233445566aa", "operation", "reshard", "group", "main",
			 "buffer", SIM_BUFFER, "term", 0, "number", 0, "time_ns",
			 (json_int_t)s->nodes[1].agent->env->time_ns(s->nodes[1].agent->userdata),
			 "sources", "targets", "n0001");
	agent_on_message(s->nodes[1].agent, 0, join);
	sim_run(s, S);
	assert_string_equal(code, "version");
	sim_free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_no_two_publishers_have_the_same_term),
		cmocka_unit_test(test_publishers_that_do_not_see_each_other_mint_other_pairs),
		cmocka_unit_test(test_a_commit_waits_for_the_record_once),
		cmocka_unit_test(test_a_record_in_pieces_is_as_good_as_one_that_is_whole),
		cmocka_unit_test(test_invented_names_keep_no_version_out),
		cmocka_unit_test(test_many_leaps_use_up_no_numbers),
		cmocka_unit_test(test_who_has_nothing_of_a_buffer_makes_nobody_remember_its_name),
		cmocka_unit_test(test_who_claims_what_it_does_not_bring_is_asked_last),
		cmocka_unit_test(test_who_pushes_waits_no_more_for_what_it_had_asked_for),
		cmocka_unit_test(test_what_was_pushed_to_another_group_meanwhile_is_caught_up_with),
		cmocka_unit_test(test_trouble_of_ones_own_does_not_end_with_asking_none_but_a_liar),
		cmocka_unit_test(
			test_who_brings_nothing_of_what_it_was_asked_for_keeps_nobody_waiting),
		cmocka_unit_test(test_a_repair_that_nobody_asked_for_is_refused),
		cmocka_unit_test(test_who_is_busy_with_what_it_was_asked_for_may_bring_it),
		cmocka_unit_test(test_who_has_no_room_to_send_a_version_from_has_not_lost_it),
		cmocka_unit_test(test_who_has_no_room_to_send_a_version_from_is_not_busy),
		cmocka_unit_test(test_who_is_to_repair_and_pushes_instead_keeps_nobody_waiting),
		cmocka_unit_test(test_all_heads_are_told_however_many_there_are),
		cmocka_unit_test(test_no_shard_is_named_as_a_version_that_was_only_heard_of),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

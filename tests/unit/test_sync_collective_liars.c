/*
 * Averages with a lying member or coordinator: nodes serve only versions that they verified in
 * their own memory.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collective_scene.h"
#include "ipc/base/num.h"
#include "server/sync/base/json_packet.h"
#include "server/sync/state/document.h"

#define S SIM_SECOND

/* --- Lies --------------------------------------------------------------------------------------- */

static void test_a_member_that_says_another_root_is_left_out(void **state)
{
	(void)state;
	for (enum policy p = POLICY_ALL; p <= POLICY_EACH; p++) {
		for (unsigned lies = 0; lies < 2; lies++) {
			struct sim *s = scene_world(4, p);
			uint64_t had[16];

			scene_note(s, had);
			s->nodes[2].lies = lies;
			s->nodes[2].n_corrupt = !lies;
			average_and_wait(s, p == POLICY_ALL ? "failed" : "committed");
			if (p == POLICY_ALL) {
				assert_non_null(strstr(s->nodes[0].why,
						       "n0002 came to another result than n0000"));
				assert_untouched(s, had);
			} else {
				assert_mean_of(s, had, 0xf);
				assert_int_equal(sim_serves(s, 3), sim_serves(s, 0));
			}
			s->nodes[2].lies = false;
			if (p != POLICY_ALL)
				assert_converges(s); /* it fetches the result of the others */
			assert_well(s);
			sim_free(s);
		}
	}
}

/* Its root is the one to be signed. */
static void test_a_coordinator_that_finds_another_root_commits_nothing(void **state)
{
	(void)state;
	for (enum policy p = POLICY_ALL; p <= POLICY_EACH; p++) {
		struct sim *s = scene_world(4, p);
		uint64_t had[16];

		scene_note(s, had);
		s->nodes[0].lies = true;
		average_and_wait(s, "failed");
		assert_non_null(strstr(s->nodes[0].why, "came to another result than n0000"));
		assert_untouched(s, had);
		assert_int_equal(s->n_decided, 0);
		s->nodes[0].lies = false;
		assert_well(s);
		sim_free(s);
	}
}

enum forgery {
	FORGED_ROOT,
	FORGED_LEAVES,
	FORGED_LAYOUT,
	FORGED_SIZE,
	FORGED_NUMBER,
	FORGED_BUFFER,
	FORGED_TIME, /* it may choose another time, but then the signature differs */
	N_FORGERIES,
};

struct forger {
	enum forgery what;
	unsigned n_told; /* nodes that received the forged decision */
};

/* Signed again by the coordinator, unless the signature is the forged part. */
static void deliver_forged(struct sim *s, unsigned to, const json_t *message, enum forgery what)
{
	struct agent *a = s->nodes[0].agent;
	cleanup(document_freep) struct document *said = NULL, *d = calloc(1, sizeof(*d));
	cleanup(json_freep) json_t *forged = NULL;
	char why[WHY_SIZE];

	assert_int_equal(document_parse(message, &said), 0);
	assert_non_null(d);
	*d = *said;
	d->text = d->signature = d->certificate = d->decision = NULL;
	d->root[9] ^= what == FORGED_ROOT;
	d->leaves[9] ^= what == FORGED_LEAVES;
	d->layout[9] ^= what == FORGED_LAYOUT;
	d->n_bytes += what == FORGED_SIZE;
	d->version_id.number += what == FORGED_NUMBER;
	d->buffer[0] ^= what == FORGED_BUFFER;
	d->time_ns += what == FORGED_TIME;
	assert_int_equal(document_sign(a, d, why), 0);
	assert_int_equal(document_decide(a, d, why), 0);
	forged = document_to_json(d);
	json_object_set(forged, "type", json_object_get(message, "type"));
	json_object_set(forged, "sync", json_object_get(message, "sync"));
	if (what == FORGED_TIME)
		json_object_set(forged, "signature", json_object_get(message, "signature"));
	agent_on_message(s->nodes[to].agent, 0, forged);
}

static bool forge(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	struct forger *f = s->userdata;
	const char *type = sim_text(message, "type");

	if (from == 2 && strcmp(type, "failed") == 0)
		f->n_told += strcmp(sim_text(message, "code"), "decision") == 0;
	if (to != 2 || strcmp(type, "commit") != 0)
		return true;
	deliver_forged(s, to, message, f->what);
	return false;
}

/* Nodes serve only verified versions, even if a coordinator signs another one. */
static void test_a_coordinator_cannot_have_published_what_was_not_verified(void **state)
{
	(void)state;
	for (enum forgery what = 0; what < N_FORGERIES; what++) {
		struct forger f = {.what = what};
		struct sim *s = scene_world(4, POLICY_ALL);
		uint64_t had[16];

		snprintf(scene, sizeof(scene), "forgery %d", (int)what);
		scene_note(s, had);
		s->on_message = forge;
		s->userdata = &f;
		average_and_wait(s, "committed");
		assert_int_equal(f.n_told, 1);
		assert_int_equal(sim_serves(s, 2), had[2]);
		assert_int_equal(sim_serves(s, 3), sim_serves(s, 0));
		s->on_message = NULL;
		assert_converges(s); /* it receives the decision from the others */
		assert_well(s);
		sim_free(s);
	}
	scene[0] = '\0';
}

/* After each message of a member, sends another one from it without sense. */
static bool json_packet_nonsense(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	const char *const *type = s->userdata;
	cleanup(json_freep) json_t *nonsense = NULL;
	const char *sync = json_string_value(json_object_get(message, "sync"));

	if (from != 2 || to != 0 || !sync)
		return true;
	nonsense = json_pack("{s:s, s:s, s:i, s:[], s:i, s:s}", "type", *type, "sync", sync,
			     "epoch", 1, "hellos", "done", -1, "root", "");
	agent_on_message(s->nodes[0].agent, 1, nonsense);
	return true;
}

static void test_messages_without_sense_cost_nobody_but_who_says_them(void **state)
{
	static const char *const TYPES[] = {"queued",   "begun",     "ready",  "refuse",  "opened",
					    "done",     "progress",  "broken", "stopped", "join",
					    "verified", "committed", "failed", "start",   "aborted",
					    "open",     "unheard-of"};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(TYPES); i++) {
		struct sim *s = scene_world(4, POLICY_QUORUM);
		const char *type = TYPES[i];

		snprintf(scene, sizeof(scene), "%s", type);
		s->on_message = json_packet_nonsense;
		s->userdata = &type;
		average_and_wait(s, "committed");
		assert_true(sim_average_of(s, sim_serves(s, 0))->n_terms >= 3);
		assert_int_equal(sim_serves(s, 1), sim_serves(s, 3));
		s->on_message = NULL;
		assert_well(s);
		sim_free(s);
	}
	scene[0] = '\0';
}

/* Accuses another node twice for each epoch that it breaks. */
static bool accuse_twice(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	const char *type = sim_text(message, "type");
	cleanup(json_freep) json_t *accusation = NULL;

	if (from != 2 || to != 0 ||
	    (strcmp(type, "opened") != 0 && strcmp(type, "progress") != 0 &&
	     strcmp(type, "done") != 0))
		return true;
	accusation = json_pack("{s:s, s:O, s:O, s:s, s:s}", "type", "broken", "sync",
			       json_object_get(message, "sync"), "epoch",
			       json_object_get(message, "epoch"), "who", "n0001", "why", "a lie");
	agent_on_message(s->nodes[0].agent, 1, accusation);
	agent_on_message(s->nodes[0].agent, 1, accusation);
	return false;
}

static void test_who_accuses_twice_is_believed_once(void **state)
{
	struct sim *s = scene_world(4, POLICY_QUORUM);
	uint64_t had[16];

	(void)state;
	scene_note(s, had);
	s->on_message = accuse_twice;
	average_and_wait(s, "committed");
	assert_mean_of(s, had, 0xb);
	s->on_message = NULL;
	assert_converges(s);
	assert_well(s);
	sim_free(s);
}

/* Once per epoch: always the same node, or all nodes in turn. */
struct accuser {
	bool is_by_turns;
	json_int_t epoch; /* the last that it broke */
	unsigned n_broken;
};

static bool accuse_once(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	static const char *const NAMES[] = {"n0001", "n0003", "n0000", "n0004"};
	struct accuser *x = s->userdata;
	json_int_t epoch = json_integer_value(json_object_get(message, "epoch"));
	cleanup(json_freep) json_t *accusation = NULL;

	if (from != 2 || to != 0 || strcmp(sim_text(message, "type"), "opened") != 0 ||
	    epoch == x->epoch)
		return true;
	accusation = json_pack("{s:s, s:O, s:I, s:s, s:s}", "type", "broken", "sync",
			       json_object_get(message, "sync"), "epoch", epoch, "who",
			       NAMES[x->is_by_turns ? x->n_broken % ARRAY_LEN(NAMES) : 0], "why",
			       "a lie");
	x->epoch = epoch;
	x->n_broken++;
	agent_on_message(s->nodes[0].agent, 1, accusation);
	return false;
}

static void test_who_accuses_in_each_epoch_gets_nobody_lost_but_itself(void **state)
{
	(void)state;
	for (unsigned by_turns = 0; by_turns < 2; by_turns++) {
		struct accuser x = {.is_by_turns = by_turns};
		struct sim *s = scene_world(5, POLICY_QUORUM);
		uint64_t had[16];

		scene_note(s, had);
		s->on_message = accuse_once;
		s->userdata = &x;
		average_and_wait(s, "committed");
		assert_mean_of(s, had, 0x1b);
		assert_int_equal(x.n_broken, 3);
		s->on_message = NULL;
		assert_converges(s);
		assert_well(s);
		sim_free(s);
	}
}

struct crowd {
	const char *name; /* the additional node's */
	unsigned n_opened; /* nodes that reported it */
};

static bool name_one_more(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	struct crowd *c = s->userdata;
	const char *type = sim_text(message, "type");
	cleanup(json_freep) json_t *more = NULL;

	c->n_opened += from == 2 && strcmp(type, "opened") == 0;
	if (to != 2 || strcmp(type, "open") != 0)
		return true;
	more = json_deep_copy(message);
	json_array_append_new(json_object_get(more, "nodes"),
			      json_pack("{s:s, s:s}", "node", c->name, "address", "127.0.0.1"));
	agent_on_message(s->nodes[2].agent, 0, more);
	return false;
}

static void test_nobody_takes_part_with_who_is_no_member_or_is_there_twice(void **state)
{
	static const char *const NAMES[] = {"stranger", "n0001", "n0002"};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(NAMES); i++) {
		struct crowd c = {.name = NAMES[i]};
		struct sim *s = scene_world(4, POLICY_QUORUM);

		snprintf(scene, sizeof(scene), "%s", NAMES[i]);
		s->on_message = name_one_more;
		s->userdata = &c;
		average_and_wait(s, "committed");
		assert_int_equal(c.n_opened, 0);
		s->on_message = NULL;
		assert_converges(s);
		assert_well(s);
		sim_free(s);
	}
	scene[0] = '\0';
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_member_that_says_another_root_is_left_out),
		cmocka_unit_test(test_a_coordinator_that_finds_another_root_commits_nothing),
		cmocka_unit_test_teardown(
			test_a_coordinator_cannot_have_published_what_was_not_verified, scene_tell),
		cmocka_unit_test(test_who_accuses_twice_is_believed_once),
		cmocka_unit_test(test_who_accuses_in_each_epoch_gets_nobody_lost_but_itself),
		cmocka_unit_test_teardown(
			test_nobody_takes_part_with_who_is_no_member_or_is_there_twice, scene_tell),
		cmocka_unit_test_teardown(test_messages_without_sense_cost_nobody_but_who_says_them,
					  scene_tell),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

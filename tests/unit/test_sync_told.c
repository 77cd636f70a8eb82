/*
 * Information about syncs for people, by agents in a simulated world: slow nodes, counts, failures
 * and history.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/num.h"
#include "push_scene.h"
#include "server/sync/base/json_fields.h"
#include "server/sync/base/json_packet.h"

#define S SIM_SECOND
#define MIB ((uint64_t)1 << 20)

static const char *text(const json_t *row, const char *key)
{
	const char *s = json_string_value(json_object_get(row, key));

	return s ? s : "";
}

static json_int_t number(const json_t *row, const char *key)
{
	return json_integer_value(json_object_get(row, key));
}

/* --- Slow nodes -------------------------------------------------------------------------------- */

/* Another node's row in the status of node 0, borrowed from `rows`. */
static json_t *row_of(json_t *rows, const char *node)
{
	json_t *row;
	size_t i;

	json_array_foreach(rows, i, row) if (strcmp(text(row, "node"), node) == 0 &&
					     strcmp(text(row, "phase"), "bytes") == 0) return row;
	return NULL;
}

static bool n2_is_slow(struct sim *s)
{
	cleanup(json_freep) json_t *rows = agent_status(s->nodes[0].agent, NULL);
	json_t *row;
	size_t i;

	/* No other node ever is: those behind it only wait. */
	json_array_foreach(rows, i, row) if (json_is_true(json_object_get(row, "slow")))
		assert_string_equal(text(row, "node"), "n0002");
	return json_is_true(json_object_get(row_of(rows, "n0002"), "slow"));
}

static void test_the_link_that_holds_up_the_others_is_slow_and_no_other(void **state)
{
	struct sim *s = push_world(5, POLICY_ALL);
	char sync[SYNC_ID_SIZE];

	(void)state;
	for (unsigned i = 1; i < 5; i++)
		s->nodes[i].rate = (i == 2 ? 8 : 64) * MIB;
	assert_int_equal(sim_push(s, 0, sync), 0);
	assert_true(sim_run_until(s, n2_is_slow, 10 * S));
	assert_true(sim_run_until(s, sim_ended, 60 * S));
	assert_false(n2_is_slow(s));
	sim_free(s);
}

static bool n2_has_some(struct sim *s)
{
	cleanup(json_freep) json_t *rows = agent_status(s->nodes[0].agent, NULL);

	return number(row_of(rows, "n0002"), "rate") > 0;
}

static bool n2_has_no_rate(struct sim *s)
{
	cleanup(json_freep) json_t *rows = agent_status(s->nodes[0].agent, NULL);
	json_t *row = row_of(rows, "n0002");

	return row && number(row, "rate") == 0 && json_is_true(json_object_get(row, "slow"));
}

static void test_what_stalled_has_no_rate(void **state)
{
	struct sim *s = push_world(4, POLICY_ALL);
	char sync[SYNC_ID_SIZE];

	(void)state;
	for (unsigned i = 1; i < 4; i++)
		s->nodes[i].rate = 32 * MIB;
	assert_int_equal(sim_push(s, 0, sync), 0);
	assert_true(sim_run_until(s, n2_has_some, 10 * S));
	s->nodes[2].engines_hang = true;
	assert_true(sim_run_until(s, n2_has_no_rate, 4 * S));
	sim_free(s);
}

/* Bytes of node 2, as reported at this node. */
static json_int_t n2_has(struct sim *s, unsigned node)
{
	cleanup(json_freep) json_t *rows = agent_status(s->nodes[node].agent, NULL);

	return number(row_of(rows, "n0002"), "done");
}

static bool n2_has_kept_something_back(struct sim *s)
{
	return n2_has(s, 0) > 0 && n2_has(s, 2) > n2_has(s, 0);
}

/* Even if it follows the previous report at once. */
static void test_what_came_last_before_a_stall_is_told(void **state)
{
	struct sim *s = push_world(4, POLICY_ALL);
	char sync[SYNC_ID_SIZE];

	(void)state;
	for (unsigned i = 1; i < 4; i++)
		s->nodes[i].rate = 32 * MIB;
	assert_int_equal(sim_push(s, 0, sync), 0);
	assert_true(sim_run_until(s, n2_has_kept_something_back, 10 * S));
	s->nodes[2].engines_hang = true;
	sim_run(s, S);
	assert_int_equal(n2_has(s, 0), n2_has(s, 2));
	assert_true(n2_has(s, 2) > 0);
	sim_free(s);
}

/* --- Metrics ----------------------------------------------------------------------------------- */

static bool has_labels(const json_t *sample, const char *role, const char *kind, const char *result)
{
	const json_t *labels = json_object_get(sample, "labels");

	return (!role || strcmp(text(labels, "role"), role) == 0) &&
	       (!kind || strcmp(text(labels, "kind"), kind) == 0) &&
	       (!result || strcmp(text(labels, "result"), result) == 0);
}

/* The sum over all samples that have these labels, each of which may be NULL. */
static json_int_t metric(struct sim *s, unsigned node, const char *name, const char *role,
			 const char *kind, const char *result)
{
	cleanup(json_freep) json_t *rows = agent_metrics(s->nodes[node].agent);
	json_int_t sum = 0;
	json_t *row, *sample;
	char whole[64];
	bool any = false;
	size_t i, k;

	snprintf(whole, sizeof(whole), "weightd_sync_%s", name);
	json_array_foreach(rows, i, row)
	{
		if (strcmp(text(row, "metric"), whole) != 0)
			continue;
		json_array_foreach(json_object_get(row, "samples"), k,
				   sample) if (has_labels(sample, role, kind, result))
		{
			sum += number(sample, "value") + number(sample, "value_ns");
			any = true;
		}
	}
	assert_true(any);
	return sum;
}

static void test_repairs_and_failures_are_counted(void **state)
{
	struct sim *s = push_world(3, POLICY_QUORUM);

	(void)state;
	sim_kill(s, 2);
	push_and_wait(s, "committed");
	sim_start(s, 2);
	assert_true(sim_run_until(s, sim_is_converged, 60 * S));
	assert_int_equal(metric(s, 2, "syncs", "member", "repair", "committed"), 1);
	assert_int_equal(metric(s, 0, "syncs", "publisher", "push", "committed"), 1);
	assert_int_equal(metric(s, 0, "syncs", "publisher", "repair", "committed") +
				 metric(s, 1, "syncs", "publisher", "repair", "committed"),
			 1);
	sim_kill(s, 1);
	sim_kill(s, 2);
	sim_run(s, 20 * S);
	push_and_wait(s, "failed");
	assert_int_equal(metric(s, 0, "syncs", "publisher", "push", "failed"), 1);
	assert_int_equal(metric(s, 0, "syncs", "publisher", "push", "committed"), 1);
	assert_int_equal(metric(s, 0, "active_syncs", NULL, NULL, NULL), 0);
	assert_int_equal(metric(s, 0, "peer_up", NULL, NULL, NULL), 0);
	sim_free(s);
}

static void test_bytes_that_were_wrong_and_epochs_that_broke_are_counted(void **state)
{
	struct sim *s = push_world(4, POLICY_ALL);
	char sync[SYNC_ID_SIZE];

	(void)state;
	s->nodes[2].n_corrupt = 2;
	push_and_wait(s, "committed");
	assert_int_equal(metric(s, 2, "corrupt_bytes", NULL, NULL, NULL), 2 * MIB);
	assert_int_equal(metric(s, 1, "corrupt_bytes", NULL, NULL, NULL), 0);
	assert_int_equal(metric(s, 0, "epochs", NULL, NULL, NULL), 3);
	assert_int_equal(metric(s, 0, "broken_epochs", NULL, NULL, NULL), 0);
	for (unsigned i = 1; i < 4; i++)
		s->nodes[i].rate = 32 * MIB;
	assert_int_equal(sim_push(s, 0, sync), 0);
	assert_true(sim_run_until(s, n2_has_some, 10 * S));
	assert_true(sim_kill_job(s, 1, JOB_TCP));
	assert_true(sim_run_until(s, sim_ended, 60 * S));
	assert_int_equal(metric(s, 0, "epochs", NULL, NULL, NULL), 5);
	assert_int_equal(metric(s, 0, "broken_epochs", NULL, NULL, NULL), 1);
	assert_int_equal(number(s->nodes[0].end, "broken"), 1);
	assert_int_equal(number(s->nodes[1].end, "broken"), 1);
	assert_int_equal(number(s->nodes[2].end, "broken"), 1);
	sim_free(s);
}

static void test_the_time_of_a_sync_is_in_its_phases(void **state)
{
	struct sim *s = push_world(3, POLICY_ALL);
	json_int_t took, phases;

	(void)state;
	push_and_wait(s, "committed");
	took = number(s->nodes[0].end, "ended_ns") - number(s->nodes[0].end, "started_ns");
	phases = metric(s, 0, "phase_seconds", "publisher", NULL, NULL);
	assert_true(took > 0);
	assert_int_equal(phases, took);
	assert_int_equal(metric(s, 0, "phase_seconds", "member", NULL, NULL), 0);
	assert_true(metric(s, 1, "phase_seconds", "member", NULL, NULL) > took / 2);
	sim_free(s);
}

/* Packets have 64 KiB. */
static void test_a_thousand_peers_fit_into_packets(void **state)
{
	struct sim *s = sim_new(&(struct sim_options){.n_nodes = 1000, .seed = 1, .is_quiet = true});
	cleanup(json_freep) json_t *rows = agent_metrics(s->nodes[0].agent);
	size_t i, n_up = 0;
	json_t *row;

	(void)state;
	json_array_foreach(rows, i, row)
	{
		if (strcmp(text(row, "metric"), "weightd_sync_peer_up") == 0)
			n_up += json_array_size(json_object_get(row, "samples"));
		assert_in_range(json_dumpb(row, NULL, 0, JSON_COMPACT), 1, JSON_PACKET_SIZE_MAX / 8);
	}
	assert_int_equal(n_up, 999);
	sim_free(s);
}

/* --- Failures ---------------------------------------------------------------------------------- */

static char cancelled[SYNC_ID_SIZE];

static void cancel(struct sim *s)
{
	char why[WHY_SIZE];

	assert_int_equal(agent_cancel(s->nodes[0].agent, cancelled, why), 0);
}

static void lose_n3(struct sim *s)
{
	sim_kill(s, 3);
	sim_run(s, 30 * S);
}

static void lose_n2_and_n3(struct sim *s)
{
	sim_kill(s, 2);
	lose_n3(s);
}

static void cut_n2_off(struct sim *s)
{
	for (unsigned i = 0; i < 4; i++)
		if (i != 2)
			sim_cut(s, 2, i, true);
}

static void kill_n2(struct sim *s)
{
	sim_kill(s, 2);
}

static void fill_n2(struct sim *s)
{
	s->nodes[2].sinks_fail = true;
}

static void corrupt_n2(struct sim *s)
{
	s->nodes[2].n_corrupt = 3;
}

static void set_clock(struct sim *s)
{
	s->nodes[0].clock_skew_ns = 1000 * S;
}

static void hang_jobs_of_n0(struct sim *s)
{
	s->nodes[0].jobs_hang = true;
}

static void hang_jobs_of_n2(struct sim *s)
{
	s->nodes[2].jobs_hang = true;
}

static void hang_engine_of_n2(struct sim *s)
{
	s->nodes[2].engines_hang = true;
}

static void silence_n2(struct sim *s)
{
	s->nodes[2].is_silent = true;
}

static void fill_the_disk_of_n0(struct sim *s)
{
	s->nodes[0].saves_fail = true;
}

static void kill_source(struct sim *s)
{
	assert_true(sim_kill_job(s, 0, JOB_SOURCE));
}

static bool n2_verifies(struct sim *s)
{
	cleanup(json_freep) json_t *rows = agent_status(s->nodes[0].agent, NULL);
	json_t *row;
	size_t i;

	json_array_foreach(rows, i, row) if (strcmp(text(row, "node"), "n0002") == 0 &&
					     strcmp(text(row, "phase"), "verify") == 0) return true;
	return false;
}

/*
 * "?" and "*" as for fnmatch(). Each sentence has a node, a link if bytes moved, the cause, and the
 * served version.
 */
static const struct failure {
	const char *name;
	enum policy policy;
	void (*trouble)(struct sim *s);
	bool (*when)(struct sim *s); /* NULL: before it begins */
	const char *at_n0;
	const char *at_n2; /* NULL: no sentence */
} FAILURES[] = {
	{"a member is absent", POLICY_ALL, lose_n3, NULL,
	 "llama 1.2 was not committed: n0003 is not connected and could not be asked; every other node still serves llama "
	 "1.1, the publisher what it has",
	 "llama 1.2 was not committed: n0003 is not connected and could not be asked; every other node still serves llama "
	 "1.1, the publisher what it has"},
	{"too few are there", POLICY_QUORUM, lose_n2_and_n3, NULL,
	 "llama 1.2 was not committed: 2 of 4 members are left, which the policy 'quorum' is not content with: n0002 is "
	 "not connected and could not be asked; every other node still serves llama 1.1, the publisher what it has",
	 NULL},
	{"a member has no room", POLICY_ALL, fill_n2, NULL,
	 "llama 1.2 was not committed: n0002 refused: host needs *, while it prepared; every other node still serves "
	 "llama 1.1, the publisher what it has",
	 "llama 1.2 was not committed on n0002: host needs *, while it made room; n0002 still serves llama 1.1"},
	{"a clock is wrong", POLICY_ALL, set_clock, NULL,
	 "llama 1.2 was not committed: n000? refused: the clock of n0000 and that of n000? differ by * s, while it "
	 "prepared; every other node still serves llama 1.1, the publisher what it has",
	 NULL},
	{"a cable is cut", POLICY_ALL, cut_n2_off, n2_has_some,
	 "llama 1.2 was not committed: n0002 did not answer for 5 s while bytes moved (n000? -> n0002, * of 64 MiB); "
	 "every other node still serves llama 1.1, the publisher what it has",
	 "llama 1.2 was not committed on n0002: its coordinator n0000 went away: did not answer for 5 s, while *; n0002 "
	 "still serves llama 1.1"},
	{"a member dies", POLICY_ALL, kill_n2, n2_has_some,
	 "llama 1.2 was not committed: n0002 * while bytes moved (n000? -> n0002, * of 64 MiB); every other node still "
	 "serves llama 1.1, the publisher what it has",
	 NULL},
	{"an agent says nothing", POLICY_ALL, silence_n2, n2_verifies,
	 "llama 1.2 was not committed: n0002 did not answer for * s while it verified; every other node still serves "
	 "llama 1.1, the publisher what it has",
	 NULL},
	{"an engine hangs", POLICY_ALL, hang_engine_of_n2, n2_has_some,
	 "llama 1.2 was not committed: n0002 *while bytes moved*; every other node still serves llama 1.1, the publisher "
	 "what it has",
	 "llama 1.2 was not committed*while bytes moved*serves llama 1.1"},
	{"bytes are wrong", POLICY_ALL, corrupt_n2, NULL,
	 "llama 1.2 was not committed: n0002 got other bytes than were signed 3 times, the last from n000?, while it "
	 "verified; every other node still serves llama 1.1, the publisher what it has",
	 NULL},
	{"a weightd hangs", POLICY_ALL, hang_jobs_of_n2, n2_verifies,
	 "llama 1.2 was not committed: n0002 failed: the local weightd of n0002 did not answer in time (verify), while it "
	 "verified; every other node still serves llama 1.1, the publisher what it has",
	 "llama 1.2 was not committed on n0002: the local weightd of n0002 did not answer in time (verify), while it verified; "
	 "n0002 still serves llama 1.1"},
	{"the publisher's weightd hangs", POLICY_ALL, hang_jobs_of_n0, NULL,
	 "llama was not committed: the local weightd did not answer in time, while n0000 attached it; every other node "
	 "still serves llama 1.1, the publisher what it has",
	 NULL},
	{"the publisher loses its version", POLICY_ALL, kill_source, n2_has_some,
	 "llama 1.2 was not committed: the source process on n0000 ended (*), while bytes moved (n000? -> n000?, * of 64 "
	 "MiB); every other node still serves llama 1.1, the publisher what it has",
	 NULL},
	{"the publisher's disk is full", POLICY_ALL, fill_the_disk_of_n0, n2_verifies,
	 "llama 1.2 was not committed: the record of n0000 could not be written: No space left on device, while members "
	 "verified; every other node still serves llama 1.1, the publisher what it has",
	 NULL},
	{"somebody cancels", POLICY_ALL, cancel, n2_has_some,
	 "llama 1.2 was not committed: it was cancelled, while bytes moved (n000? -> n000?, * of 64 MiB); every other "
	 "node still serves llama 1.1, the publisher what it has",
	 "llama 1.2 was not committed: it was cancelled, while bytes moved (n000? -> n000?, * of 64 MiB); every other "
	 "node still serves llama 1.1, the publisher what it has"},
};

static unsigned n_wrong(const struct failure *f, unsigned node, const char *sentence,
			const char *pattern)
{
	char whole[2048];

	snprintf(whole, sizeof(whole), "sync ????????????????: %s", pattern);
	if (fnmatch(whole, sentence, 0) == 0)
		return 0;
	print_message("%s: n%04u says\n\t%s\nand not\n\t%s\n", f->name, node, sentence, whole);
	return 1;
}

static void test_a_failure_names_the_node_the_link_the_phase_and_what_was_kept(void **state)
{
	unsigned n = 0;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(FAILURES); i++) {
		const struct failure *f = &FAILURES[i];
		struct sim *s = push_world(4, f->policy);

		push_and_wait(s, "committed");
		assert_true(sim_run_until(s, sim_is_converged, 60 * S));
		for (unsigned k = 1; k < 4; k++) {
			s->nodes[k].rate = 32 * MIB;
			sim_forget_end(s, k);
		}
		sim_forget_end(s, 0);
		if (!f->when)
			f->trouble(s);
		assert_int_equal(sim_push(s, 0, cancelled), 0);
		if (f->when) {
			assert_true(sim_run_until(s, f->when, 60 * S));
			f->trouble(s);
		}
		assert_true(sim_run_until(s, sim_ended, 300 * S));
		assert_string_equal(s->nodes[0].outcome, "failed");
		n += n_wrong(f, 0, s->nodes[0].why, f->at_n0);
		sim_run(s, 10 * S);
		if (f->at_n2)
			n += n_wrong(f, 2, s->nodes[2].why, f->at_n2);
		sim_free(s);
	}
	assert_int_equal(n, 0);
}

/* --- History ----------------------------------------------------------------------------------- */

static void restart(struct sim *s, unsigned node)
{
	sim_kill(s, node);
	sim_start(s, node);
}

static void assert_remembers(struct sim *s, unsigned node, const json_t *expected)
{
	cleanup(json_freep) json_t *history = agent_history(s->nodes[node].agent, 1000);
	char *found = json_dumps(history, JSON_SORT_KEYS),
	     *wanted = json_dumps(expected, JSON_SORT_KEYS);

	assert_string_equal(found, wanted);
	free(found);
	free(wanted);
}

static void test_the_history_survives_the_agent(void **state)
{
	struct sim *s = push_world(3, POLICY_ALL);
	cleanup(json_freep) json_t *one = NULL, *two = NULL;

	(void)state;
	push_and_wait(s, "committed");
	assert_int_equal(agent_flush(s->nodes[0].agent), 0);
	one = agent_history(s->nodes[0].agent, 1000);
	assert_int_equal(json_array_size(one), 1);
	restart(s, 0);
	assert_remembers(s, 0, one);

	/* Killed in the middle of a sync, after some seconds. */
	sim_run(s, 20 * S);
	fill_n2(s);
	push_and_wait(s, "failed");
	sim_run(s, 6 * S);
	two = agent_history(s->nodes[0].agent, 1000);
	assert_int_equal(json_array_size(two), 2);
	restart(s, 0);
	assert_remembers(s, 0, two);
	assert_string_equal(text(json_array_get(two, 0), "state"), "failed");
	assert_string_equal(text(json_array_get(two, 0), "phase"), "prepare");
	sim_free(s);
}

/* Rows of all pieces. */
static size_t n_recorded(const json_t *commit_log)
{
	const json_t *piece;
	size_t i, n = 0;

	json_array_foreach(commit_log, i, piece)
		n += json_array_size(json_object_get(piece, "history"));
	return n;
}

static void test_the_history_has_a_bound_and_loses_the_oldest(void **state)
{
	struct sim *s = push_world(1, POLICY_ALL);
	cleanup(json_freep) json_t *history = NULL;

	(void)state;
	for (unsigned i = 0; i < 260; i++) {
		push_and_wait(s, "committed");
		sim_forget_end(s, 0);
	}
	assert_int_equal(agent_flush(s->nodes[0].agent), 0);
	assert_in_range(n_recorded(s->nodes[0].commit_log), 256, 260);
	restart(s, 0);
	push_and_wait(s, "committed");
	history = agent_history(s->nodes[0].agent, 1000);
	assert_int_equal(json_array_size(history), 256);
	for (unsigned i = 0; i < 256; i++)
		assert_int_equal(number(json_array_get(history, i), "number"), 261 - i);
	sim_free(s);
}

static void test_a_history_that_is_damaged_costs_no_record(void **state)
{
	struct sim *s = push_world(1, POLICY_ALL);
	cleanup(json_freep) json_t *whole = NULL;
	json_t *rows;

	(void)state;
	push_and_wait(s, "committed");
	assert_int_equal(agent_flush(s->nodes[0].agent), 0);
	whole = agent_history(s->nodes[0].agent, 1000);
	sim_kill(s, 0);
	rows = json_object_get(s->nodes[0].commit_log, "history");
	json_array_append_new(rows, json_integer(1));
	json_array_append_new(rows, json_pack("{s:i}", "sync", 3));
	json_array_append_new(rows, json_pack("{s:s}", "sync", "short"));
	sim_start(s, 0);
	assert_remembers(s, 0, whole);
	json_decref(agent_status(s->nodes[0].agent, "0123456789abcdef"));
	sim_kill(s, 0);
	json_object_del(s->nodes[0].commit_log, "history"); /* like a record of an earlier release */
	sim_start(s, 0);
	sim_run(s, S);
	push_and_wait(s, "committed");
	sim_free(s);
}

static bool drop_want(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	(void)s, (void)from, (void)to;
	return strcmp(text(message, "type"), "want") != 0;
}

static void test_a_layout_that_does_not_come_is_no_fault_of_the_local_weightd(void **state)
{
	struct sim *s = push_world(2, POLICY_ALL);

	(void)state;
	s->on_message = drop_want;
	push_and_wait(s, "failed");
	assert_non_null(strstr(s->nodes[1].why,
			       "n0000 did not send it in time, while it waited for the layout"));
	sim_free(s);
}

/* A closed descriptor cannot be kept, like any when there are too many. */
static bool send_what_cannot_be_kept(struct sim *s, unsigned from, unsigned to,
				     const json_t *message)
{
	cleanup(json_freep) json_t *first = NULL;
	uint8_t hash[32];

	if (strcmp(text(message, "type"), "want") != 0)
		return true;
	first = json_pack("{s:O}", "hash", json_array_get(json_object_get(message, "blobs"), 0));
	assert_int_equal(field_bytes(first, "hash", hash, sizeof(hash)), 0);
	agent_on_blob(s->nodes[from].agent, to, hash, -1,
		      agent_blob_limit(s->nodes[from].agent, to, hash));
	return false;
}

static void test_a_layout_for_which_there_is_no_descriptor_is_said_at_once(void **state)
{
	struct sim *s = push_world(2, POLICY_ALL);
	uint64_t began = s->now_ns;

	(void)state;
	s->on_message = send_what_cannot_be_kept;
	push_and_wait(s, "failed");
	assert_non_null(strstr(s->nodes[0].why, "there are no descriptors for its layout"));
	assert_true(s->now_ns - began < S);
	sim_free(s);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_link_that_holds_up_the_others_is_slow_and_no_other),
		cmocka_unit_test(test_what_stalled_has_no_rate),
		cmocka_unit_test(test_what_came_last_before_a_stall_is_told),
		cmocka_unit_test(test_repairs_and_failures_are_counted),
		cmocka_unit_test(test_bytes_that_were_wrong_and_epochs_that_broke_are_counted),
		cmocka_unit_test(test_the_time_of_a_sync_is_in_its_phases),
		cmocka_unit_test(test_a_thousand_peers_fit_into_packets),
		cmocka_unit_test(test_a_failure_names_the_node_the_link_the_phase_and_what_was_kept),
		cmocka_unit_test(test_the_history_survives_the_agent),
		cmocka_unit_test(test_the_history_has_a_bound_and_loses_the_oldest),
		cmocka_unit_test(test_a_history_that_is_damaged_costs_no_record),
		cmocka_unit_test(test_a_layout_that_does_not_come_is_no_fault_of_the_local_weightd),
		cmocka_unit_test(test_a_layout_for_which_there_is_no_descriptor_is_said_at_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

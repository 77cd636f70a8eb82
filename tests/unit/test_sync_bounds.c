/*
 * Bounds: the work of an agent at a time, for any requests. Requests beyond the bound wait for
 * their turn.
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
#include <unistd.h>

#include "ipc/base/num.h"
#include "server/sync/base/json_packet.h"
#include "server/sync/config.h"
#include "server/sync/participant/participant.h"
#include "server/sync/state/agent_state.h"
#include "server/sync/state/time_limit.h"
#include "sim.h"
#include "sim_jobs.h"

#define S SIM_SECOND
#define N_PUSHES 32 /* the most that an agent accepts */

struct most {
	unsigned n_jobs; /* at one node */
	unsigned n_wants; /* requests of one member, not answered by all blobs */
	unsigned wants[8];
};

/* Counts at all nodes whenever a message arrives. */
static bool count(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	const char *type = json_string_value(json_object_get(message, "type"));
	struct most *most = s->userdata;

	(void)to;
	most->wants[from] += strcmp(type, "want") == 0;
	most->wants[from] -= strcmp(type, "ready") == 0;
	most->n_wants = most->wants[from] > most->n_wants ? most->wants[from] : most->n_wants;
	for (unsigned i = 1; i < s->options.n_nodes; i++) {
		unsigned n = 0;
		struct job *j;

		list_for_each(j, &s->nodes[i].jobs, link)
			n++;
		most->n_jobs = n > most->n_jobs ? n : most->n_jobs;
	}
	return true;
}

/* One push for each of `n` buffers, at once. */
static int push_many(struct sim *s, unsigned n, char why[WHY_SIZE])
{
	int r = 0;

	for (unsigned i = 0; i < n && r == 0; i++) {
		char buffer[16], sync[SYNC_ID_SIZE];
		cleanup(json_freep) json_t *request = NULL;

		snprintf(buffer, sizeof(buffer), "b%u", i);
		sim_add_version(&s->nodes[0], buffer, ++s->n_contents, s->options.n_bytes);
		request = json_pack("{s:s}", "buffer", buffer);
		r = agent_push(s->nodes[0].agent, request, sync, why);
	}
	return r;
}

static bool have_ended(struct sim *s, size_t n)
{
	cleanup(json_freep) json_t *rows = agent_history(s->nodes[0].agent, 1000);

	return json_array_size(rows) >= n && sim_is_idle(s);
}

static bool all_ended(struct sim *s)
{
	return have_ended(s, N_PUSHES);
}

static unsigned n_serving(struct sim *s, unsigned node)
{
	cleanup(json_freep) json_t *rows = agent_replicas(s->nodes[node].agent, AGENT_SELF);
	unsigned n = 0;
	json_t *row;
	size_t i;

	json_array_foreach(rows, i, row)
		n += strcmp(json_string_value(json_object_get(row, "state")), "serving") == 0;
	return n;
}

static struct sim *world(enum policy policy, struct most *most)
{
	struct sim *s = sim_new(&(struct sim_options){.n_nodes = 3, .policy = policy, .seed = 3});

	sim_run(s, S);
	s->on_message = count;
	s->userdata = most;
	return s;
}

static void test_many_pushes_have_their_turns_at_a_member(void **state)
{
	struct most most = {0};
	struct sim *s = world(POLICY_ALL, &most);
	char why[WHY_SIZE] = "";

	(void)state;
	assert_int_equal(push_many(s, N_PUSHES, why), 0);
	assert_true(sim_run_until(s, all_ended, 300 * S));
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(n_serving(s, i), N_PUSHES);
	assert_in_range(most.n_jobs, 1, 2 * 16);
	assert_in_range(most.n_wants, 1, 24); /* two blobs each, and an outbox has room for 64 */
	sim_free(s);
}

/* It waits for longer than the deadline of PREPARE. */
static void test_a_push_that_waits_for_its_turn_is_not_given_up(void **state)
{
	struct most most = {0};
	struct sim *s = world(POLICY_ALL, &most);
	char why[WHY_SIZE] = "";
	uint64_t began = s->now_ns;

	(void)state;
	s->nodes[1].rate = s->nodes[2].rate = 2 * MIB;
	assert_int_equal(push_many(s, N_PUSHES, why), 0);
	assert_true(sim_run_until(s, all_ended, 600 * S));
	assert_true(s->now_ns - began > 40 * S);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(n_serving(s, i), N_PUSHES);
	sim_free(s);
}

static bool says_queued(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	bool *is_queued = s->userdata;

	(void)to;
	*is_queued |= from == 1 && strcmp(sim_text(message, "type"), "queued") == 0;
	return true;
}

static bool n1_has_queued_one(struct sim *s)
{
	return *(bool *)s->userdata;
}

static void test_a_push_that_fails_before_its_turn_says_so(void **state)
{
	struct most most = {0};
	struct sim *s = world(POLICY_ALL, &most);
	char why[WHY_SIZE] = "";
	bool is_queued = false;

	(void)state;
	s->on_message = says_queued;
	s->userdata = &is_queued;
	s->nodes[1].rate = 2 * MIB;
	assert_int_equal(push_many(s, N_PUSHES, why), 0);
	assert_true(sim_run_until(s, n1_has_queued_one, 60 * S));
	sim_kill(s, 0);
	sim_run(s, S);
	if (!strstr(s->nodes[1].why,
		    "its coordinator n0000 went away: hung up, while it waited for its turn; "))
		fail_msg("%s", s->nodes[1].why);
	sim_free(s);
}

static void test_more_pushes_than_that_are_refused_with_a_sentence(void **state)
{
	struct most most = {0};
	struct sim *s = world(POLICY_ALL, &most);
	char why[WHY_SIZE] = "";

	(void)state;
	assert_int_equal(push_many(s, N_PUSHES + 1, why), -EBUSY);
	assert_string_equal(why, "32 pushes are under way");
	sim_free(s);
}

static void test_a_rate_that_looks_like_no_rate_is_refused_with_the_least_one(void **state)
{
	struct most most = {0};
	struct sim *s = world(POLICY_ALL, &most);
	char sync[SYNC_ID_SIZE], why[WHY_SIZE] = "";

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		cleanup(json_freep) json_t *request = json_pack("{s:s, s:i}", "buffer", SIM_BUFFER,
								"max_rate", i ? 1 : 65535);

		assert_int_equal(agent_push(s->nodes[0].agent, request, sync, why), -EBADMSG);
		assert_int_equal(agent_plan(s->nodes[0].agent, request, sync, why), -EBADMSG);
		assert_non_null(strstr(why, "are too few for a push: 65536 are the least"));
	}
	sim_free(s);
}

static void test_a_reshard_of_nothing_is_refused_at_any_rate(void **state)
{
	struct most most = {0};
	struct sim *s = world(POLICY_ALL, &most);
	char sync[SYNC_ID_SIZE], why[WHY_SIZE] = "";
	cleanup(json_freep) json_t *request = json_pack("{s:s, s:i}", "buffer", SIM_BUFFER,
							"max_rate", 1 << 20);

	(void)state;
	assert_int_equal(agent_reshard(s->nodes[0].agent, request, sync, why), -EBADMSG);
	assert_string_equal(why, "a reshard has 1 to 64 sources and targets, and a split");
	sim_free(s);
}

/* The sum of several sizes must be valid, too. */
static void test_a_deadline_is_one_whatever_the_bytes_and_the_rate(void **state)
{
	struct most most = {0};
	struct sim *s = world(POLICY_ALL, &most);
	const struct agent *a = s->nodes[0].agent;
	uint64_t before = 0;

	(void)state;
	for (unsigned shift = 0; shift < 64; shift++) {
		uint64_t ns = time_limit_to_move(a, (uint64_t)1 << shift, 1);

		assert_in_range(ns, before, UINT64_MAX / 4);
		before = ns;
	}
	sim_free(s);
}

static bool n2_has_all(struct sim *s)
{
	return n_serving(s, 2) == N_PUSHES && sim_is_idle(s);
}

static void test_who_missed_much_catches_up_a_few_at_a_time(void **state)
{
	struct most most = {0};
	struct sim *s = world(POLICY_QUORUM, &most);
	char why[WHY_SIZE] = "";

	(void)state;
	sim_kill(s, 2);
	sim_run(s, 30 * S);
	assert_int_equal(push_many(s, N_PUSHES, why), 0);
	assert_true(sim_run_until(s, all_ended, 300 * S));
	most = (struct most){0};
	sim_start(s, 2);
	assert_true(sim_run_until(s, n2_has_all, 300 * S));
	assert_in_range(most.n_jobs, 1, 2 * 8);
	sim_free(s);
}

/* --- Before weightd is used -------------------------------------------------------------------- */

static bool four_ended(struct sim *s)
{
	return have_ended(s, 4);
}

/* A layout has 1,000 bytes here. */
static void test_layouts_on_their_way_have_a_share_of_max_bytes(void **state)
{
	struct most most = {0};
	struct sim *s = world(POLICY_ALL, &most);
	char why[WHY_SIZE] = "";

	(void)state;
	s->options.n_bytes = 4096;
	s->nodes[1].config.max_bytes = s->nodes[2].config.max_bytes = 8 * 1100;
	assert_int_equal(push_many(s, 4, why), 0);
	assert_true(sim_run_until(s, four_ended, 300 * S));
	assert_int_equal(n_serving(s, 1), 4);
	assert_int_equal(most.n_wants, 1);
	sim_free(s);
}

static void test_a_layout_out_of_proportion_is_refused(void **state)
{
	struct most most = {0};
	struct sim *s = world(POLICY_ALL, &most);
	char sync[SYNC_ID_SIZE];

	(void)state;
	s->options.n_bytes = 4096;
	s->nodes[1].config.max_bytes = 4096;
	assert_int_equal(sim_push(s, 0, sync), 0);
	assert_true(sim_run_until(s, sim_ended, 30 * S));
	assert_non_null(strstr(s->nodes[0].why, "n0001 refused: its layout has 1000 bytes, and "
						"max-bytes of n0001 leaves 512 for those"));
	sim_free(s);
}

static void test_max_bytes_is_the_memory_of_the_machine_if_nothing_is_said(void **state)
{
	static const char TEXT[] = "[node]\nname = a\nlisten = 127.0.0.1:7400\n"
				   "[tls]\nca = /c\ncertificate = /c\nkey = /k\n"
				   "[group main]\nmembers = a\npublishers = a\n";
	uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	char text[256];
	struct config c;
	int r = config_parse("sync.conf", TEXT, sizeof(TEXT) - 1, &c);

	(void)state;
	if (r == -ENOSYS)
		skip(); /* built without inih */
	assert_int_equal(r, 0);
	assert_int_equal(c.max_bytes, memory);
	config_deinit(&c);
	snprintf(text, sizeof(text), "%s[limits]\nmax-bytes = unlimited\n", TEXT);
	assert_int_equal(config_parse("sync.conf", text, strlen(text), &c), 0);
	assert_int_equal(c.max_bytes, 0);
	config_deinit(&c);
}

/* --- Turns -------------------------------------------------------------------------------------- */

static struct participant *queue_one(struct agent *a, unsigned coordinator)
{
	struct participant *d = calloc(1, sizeof(*d));

	assert_non_null(d);
	d->coordinator = coordinator;
	list_append(&a->participants, &d->link);
	return d;
}

/* Oldest first, as callers that start queued work do. */
static void begin_next(struct agent *a, unsigned max, unsigned n_begun[])
{
	struct participant *d;

	list_for_each(d, &a->participants, link) {
		if (d->state != PARTICIPANT_QUEUED || !participant_has_turn(a, d, max))
			continue;
		d->state = PARTICIPANT_WANT;
		n_begun[d->coordinator]++;
	}
}

static void end_one(struct agent *a, unsigned coordinator)
{
	struct participant *d;

	list_for_each(d, &a->participants, link)
		if (d->coordinator == coordinator && d->state == PARTICIPANT_WANT)
			break;
	list_remove(&d->link);
	free(d);
}

/*
 * Each leaves as many turns to others as it has, so five take all. Of those without a turn, the
 * first gets the next one.
 */
static void test_a_sixth_coordinator_has_the_turn_that_is_free_next(void **state)
{
	static const unsigned BEGUN[6] = {8, 4, 2, 1, 1, 0};

	(void)state;
	for (unsigned ends = 0; ends < 5; ends++) {
		struct agent a = {0};
		struct participant *d, *next;
		unsigned n[6] = {0};

		list_init(&a.participants);
		for (unsigned c = 0; c < 6; c++)
			for (unsigned i = 0; i < 16; i++)
				queue_one(&a, c);
		begin_next(&a, 16, n);
		for (unsigned c = 0; c < 6; c++)
			assert_int_equal(n[c], BEGUN[c]);
		end_one(&a, ends);
		begin_next(&a, 16, n);
		for (unsigned c = 0; c < 6; c++)
			assert_int_equal(n[c], BEGUN[c] + (c == (BEGUN[ends] == 1 ? ends : 5)));
		list_for_each_safe(d, next, &a.participants, link)
			free(d);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_sixth_coordinator_has_the_turn_that_is_free_next),
		cmocka_unit_test(test_many_pushes_have_their_turns_at_a_member),
		cmocka_unit_test(test_a_push_that_waits_for_its_turn_is_not_given_up),
		cmocka_unit_test(test_a_push_that_fails_before_its_turn_says_so),
		cmocka_unit_test(test_more_pushes_than_that_are_refused_with_a_sentence),
		cmocka_unit_test(test_a_rate_that_looks_like_no_rate_is_refused_with_the_least_one),
		cmocka_unit_test(test_a_reshard_of_nothing_is_refused_at_any_rate),
		cmocka_unit_test(test_a_deadline_is_one_whatever_the_bytes_and_the_rate),
		cmocka_unit_test(test_who_missed_much_catches_up_a_few_at_a_time),
		cmocka_unit_test(test_layouts_on_their_way_have_a_share_of_max_bytes),
		cmocka_unit_test(test_a_layout_out_of_proportion_is_refused),
		cmocka_unit_test(test_max_bytes_is_the_memory_of_the_machine_if_nothing_is_said),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

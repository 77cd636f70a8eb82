/*
 * Reshards in a simulated world: each target has its shard of all sources, or its previous version,
 * while nodes die, hang or lie. The world itself asserts that no shard is published before all of
 * them are verified.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "collective_scene.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/sync/base/json_packet.h"
#include "sim_reshard.h"

#define S SIM_SECOND

/*
 * Nodes 0 (the coordinator) and 2 are sources and targets; node 1 is only a source, and node 3 only
 * a target.
 */
#define N_NODES 4
#define SOURCES 0x7u
#define TARGETS 0xdu

/* All messages between nodes, in the order of their first appearance. */
static const char *const STEPS[] = {"join",   "ready",    "plan",     "open",
				    "opened", "start",    "progress", "done",
				    "verify", "verified", "commit",   "committed"};

/*
 * The words of a plan: magic and counts, two sizes of each node, and four words of each link and
 * nine of each of its moves.
 */
#define FIRST_MOVE (4 + 2 * N_NODES + 4 * 9)
#define N_WORDS (FIRST_MOVE + 9 * 9)

static const char NOT_EVERYWHERE[] = "was not committed everywhere";

static uint64_t shard_at(const struct sim *s, unsigned node)
{
	return sim_serves_of(s, node, SIM_SHARDS);
}

static void begin(struct sim *s, char ret_sync[SYNC_ID_SIZE])
{
	assert_int_equal(sim_reshard(s, 0, SOURCES, TARGETS, ret_sync), 0);
}

static void reshard_and_wait(struct sim *s, const char *outcome)
{
	char sync[SYNC_ID_SIZE];

	begin(s, sync);
	assert_ends(s, outcome, 400 * S);
}

static void note_shards(const struct sim *s, uint64_t ret_had[])
{
	for (unsigned i = 0; i < s->options.n_nodes; i++)
		ret_had[i] = shard_at(s, i);
}

/* All targets have the shards of one sync, of the sources' current versions, each its own. */
static void assert_shards(const struct sim *s, unsigned sources, unsigned targets)
{
	const struct sim_made *first = NULL;

	for (unsigned i = 0; i < s->options.n_nodes; i++) {
		const struct sim_made *shard = sim_shard_of(s, shard_at(s, i));
		unsigned n = 0;

		if (!(targets & 1u << i))
			continue;
		assert_non_null(shard);
		first = first ? first : shard;
		assert_string_equal(shard->sync, first->sync);
		assert_true(shard == first || shard->rank > first->rank);
		for (unsigned j = 0; j < s->options.n_nodes; j++)
			if (sources & 1u << j)
				assert_int_equal(shard->terms[n++], sim_serves(s, j));
		assert_int_equal(shard->n_terms, n);
	}
}

/* The number of nodes that serve a new version, which is one of `sync`. */
static unsigned count_new(const struct sim *s, const uint64_t had[], const char *sync)
{
	unsigned n = 0;

	for (unsigned i = 0; i < s->options.n_nodes; i++) {
		if (shard_at(s, i) == had[i])
			continue;
		assert_true(TARGETS & 1u << i);
		assert_string_equal(sim_shard_of(s, shard_at(s, i))->sync, sync);
		n++;
	}
	return n;
}

static void assert_untouched_shards(const struct sim *s, const uint64_t had[])
{
	assert_int_equal(count_new(s, had, ""), 0);
}

/* All nodes get new versions and reshard, whatever happened before. */
static void assert_reshards(struct sim *s)
{
	sim_run(s, 60 * S);
	assert_true(sim_run_until(s, sim_is_idle, 20 * S));
	for (unsigned i = 0; i < s->options.n_nodes; i++)
		assert_true(sim_train(s, i, SIM_BUFFER));
	reshard_and_wait(s, "committed");
	assert_shards(s, SOURCES, TARGETS);
}

/* --- Reshards ---------------------------------------------------------------------------------- */

static json_int_t number(const json_t *row, const char *key)
{
	return json_integer_value(json_object_get(row, key));
}

static void test_each_target_gets_its_part_of_what_all_sources_have(void **state)
{
	static const unsigned SHAPES[][2] = {{SOURCES, TARGETS}, {0xf, 0xf}, {0x3, 0xc}, {0xf, 0x1},
					     {0x1, 0xf},         {0x8, 0x1}, {0x1, 0x1}};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(SHAPES); i++) {
		struct sim *s = scene_world(N_NODES, POLICY_ALL);
		char sync[SYNC_ID_SIZE];
		const json_t *end;

		assert_int_equal(sim_reshard(s, 0, SHAPES[i][0], SHAPES[i][1], sync), 0);
		assert_ends(s, "committed", 400 * S);
		assert_shards(s, SHAPES[i][0], SHAPES[i][1]);
		end = s->nodes[0].end;
		assert_int_equal(number(end, "bytes") > 0, i + 1 < ARRAY_LEN(SHAPES));
		assert_int_equal(number(end, "planned"), number(end, "bytes"));
		assert_int_equal(number(end, "kernel"), number(end, "bytes"));
		assert_reshards(s);
		sim_free(s);
	}
}

/* Under any policy of the group. */
static void test_one_that_is_away_ends_it_with_its_name(void **state)
{
	(void)state;
	for (enum policy p = POLICY_ALL; p <= POLICY_EACH; p++) {
		struct sim *s = scene_world(N_NODES, p);

		sim_kill(s, 1);
		sim_run(s, S);
		reshard_and_wait(s, "failed");
		assert_non_null(strstr(s->nodes[0].why, "n0001 is not connected"));
		sim_start(s, 1);
		assert_reshards(s);
		sim_free(s);
	}
}

static void test_one_without_room_ends_it_with_its_name(void **state)
{
	struct sim *s = scene_world(N_NODES, POLICY_ALL);

	(void)state;
	s->nodes[3].sinks_fail = true;
	reshard_and_wait(s, "failed");
	assert_non_null(
		strstr(s->nodes[0].why, "n0003 refused: host needs 64 MiB more than there are"));
	s->nodes[3].sinks_fail = false;
	assert_reshards(s);
	sim_free(s);
}

static bool both_ended(struct sim *s)
{
	return s->nodes[0].end && s->nodes[1].end;
}

static void test_two_coordinators_at_once_do_not_hang(void **state)
{
	struct sim *s = scene_world(N_NODES, POLICY_ALL);
	char sync[SYNC_ID_SIZE];

	(void)state;
	begin(s, sync);
	assert_int_equal(sim_reshard(s, 1, SOURCES, TARGETS, sync), 0);
	assert_true(sim_run_until(s, both_ended, 60 * S));
	assert_reshards(s);
	sim_free(s);
}

/* --- Loss at each step --------------------------------------------------------------------------- */

/*
 * From a loss to the end: the planner has 120 s, and the longest other phases are the two of
 * PREPARE.
 */
#define LONGEST (170 * S)

static void lose(struct loss l)
{
	struct sim *s = scene_world(N_NODES, POLICY_ALL);
	char sync[SYNC_ID_SIZE], outcome[16], why[WHY_SIZE];
	uint64_t had[N_NODES];
	unsigned n;

	note_shards(s, had);
	s->on_message = strike_at;
	s->userdata = &l;
	begin(s, sync);
	if (l.blow == BLOW_KILL && !l.victim)
		sim_run(s, LONGEST);
	else
		assert_true(sim_run_until(s, sim_ended, LONGEST));
	/* A node that is only a source reports no progress. */
	assert_int_equal(l.at_ns != 0, l.victim != 1 || strcmp(l.type, "progress") != 0);
	snprintf(outcome, sizeof(outcome), "%s", s->nodes[0].outcome);
	snprintf(why, sizeof(why), "%s", s->nodes[0].why);
	sim_run(s, LONGEST); /* members may wait for longer than the coordinator */
	if (l.blow != BLOW_HANG)
		assert_true(sim_run_until(s, sim_is_idle, 60 * S));
	n = count_new(s, had, sync);
	if (strcmp(outcome, "committed") == 0)
		assert_int_equal(n, 3);
	else if (outcome[0] && !strstr(why, NOT_EVERYWHERE))
		assert_int_equal(n, 0);
	s->on_message = NULL;
	recover(s, l.victim);
	assert_reshards(s);
	sim_free(s);
}

static void lose_at_each_step(unsigned victim)
{
	for (enum blow b = 0; b < N_BLOWS; b++)
		for (size_t i = 0; i < ARRAY_LEN(STEPS); i++) {
			snprintf(scene, sizeof(scene), "%s of n%04u at %s", BLOWS[b], victim,
				 STEPS[i]);
			lose((struct loss){STEPS[i], b, victim, 0});
		}
	scene[0] = '\0';
}

static void test_a_member_lost_at_any_step_leaves_all_or_none(void **state)
{
	(void)state;
	for (unsigned victim = 1; victim < N_NODES; victim++)
		lose_at_each_step(victim);
}

static void test_a_coordinator_lost_at_any_step_leaves_old_or_new(void **state)
{
	(void)state;
	lose_at_each_step(0);
}

static bool moves(struct sim *s)
{
	struct job *j;

	list_for_each(j, &s->nodes[0].jobs, link)
		if (j->kind == JOB_GLOO)
			return true;
	return false;
}

/* No other node takes part that could be accused, or accuse it. */
static void test_one_that_reshards_alone_survives_its_engine(void **state)
{
	struct sim *s = scene_world(N_NODES, POLICY_ALL);
	char sync[SYNC_ID_SIZE];

	(void)state;
	assert_int_equal(sim_reshard(s, 0, 0x1, 0x1, sync), 0);
	assert_true(sim_run_until(s, moves, LONGEST));
	assert_true(sim_kill_job(s, 0, JOB_GLOO));
	assert_ends(s, "committed", LONGEST);
	assert_shards(s, 0x1, 0x1);
	sim_free(s);
}

static bool cancel_at(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	struct loss *l = s->userdata;
	char why[WHY_SIZE];

	(void)from, (void)to;
	if (l->at_ns || strcmp(sim_text(message, "type"), l->type) != 0)
		return true;
	l->at_ns = s->now_ns;
	(void)agent_cancel(s->nodes[0].agent, sim_text(message, "sync"), why);
	return true;
}

static void test_a_cancelled_one_leaves_what_there_was(void **state)
{
	(void)state;
	for (size_t i = 0; strcmp(STEPS[i], "commit") != 0; i++) {
		struct loss l = {.type = STEPS[i]};
		struct sim *s = scene_world(N_NODES, POLICY_ALL);
		uint64_t had[N_NODES];

		snprintf(scene, sizeof(scene), "%s", STEPS[i]);
		note_shards(s, had);
		s->on_message = cancel_at;
		s->userdata = &l;
		reshard_and_wait(s, "failed");
		assert_non_null(strstr(s->nodes[0].why, "was cancelled"));
		sim_run(s, S);
		assert_true(sim_is_idle(s));
		assert_untouched_shards(s, had);
		s->on_message = NULL;
		assert_reshards(s);
		sim_free(s);
	}
	scene[0] = '\0';
}

/* --- The planner -------------------------------------------------------------------------------- */

static struct job *planner_of(const struct sim *s)
{
	struct job *j;

	list_for_each(j, &s->nodes[0].jobs, link)
		if (j->kind == JOB_PLANNER)
			return j;
	return NULL;
}

static bool has_planner(struct sim *s)
{
	return planner_of(s) != NULL;
}

/* No node got a new version, and the next reshard succeeds. */
static void assert_fails_as_planned(struct sim *s, const char *why)
{
	uint64_t had[N_NODES] = {0};

	assert_ends(s, "failed", 130 * S);
	if (!strstr(s->nodes[0].why, why))
		assert_string_equal(s->nodes[0].why, why);
	assert_non_null(strstr(s->nodes[0].why, "every node still serves what it had"));
	s->nodes[0].planners_fail = false;
	sim_run(s, S);
	assert_true(sim_is_idle(s));
	assert_untouched_shards(s, had);
	assert_reshards(s);
	sim_free(s);
}

static struct sim *world_that_plans(void)
{
	struct sim *s = scene_world(N_NODES, POLICY_ALL);
	char sync[SYNC_ID_SIZE];

	begin(s, sync);
	assert_true(sim_run_until(s, has_planner, 10 * S));
	return s;
}

static void test_a_planner_that_fails_dies_or_hangs_ends_it(void **state)
{
	struct sim *s = scene_world(N_NODES, POLICY_ALL);
	char sync[SYNC_ID_SIZE];

	(void)state;
	s->nodes[0].planners_fail = true;
	begin(s, sync);
	assert_fails_as_planned(s, "tensor 'w' cannot be split by 3");

	s = world_that_plans();
	assert_true(sim_kill_job(s, 0, JOB_PLANNER));
	assert_fails_as_planned(s, "the planner of n0000 ended (signal 9)");

	s = world_that_plans();
	planner_of(s)->hangs = true;
	assert_fails_as_planned(s, "the planner took longer than 120 s");
}

static int plan_fd_of(const void *text, size_t size)
{
	int fd;

	assert_int_equal(fd_sealed_copy("sim-plan", text, size, &fd), 0);
	return fd;
}

#define HASH "0000000000000000000000000000000000000000000000000000000000000000"
#define TARGET(rank, more)                                                                         \
	"{\"op\":\"target\",\"rank\":" #rank ",\"n_bytes\":1,\"size\":1,\"hash\":\"" HASH          \
	"\"" more "}"
#define PLANNED(size) "{\"op\":\"planned\",\"size\":" #size ",\"hash\":\"" HASH "\"}"

/* A planner's answers determine the memory of this node, and are sent to others. */
static void test_what_a_planner_says_is_taken_only_in_its_form(void **state)
{
	static const struct {
		const char *says[4];
		bool is_blob; /* its descriptor is sealed */
	} SAID[] = {
		{{"{}"}, true},
		{{"{\"op\":\"unheard-of\"}"}, true},
		{{TARGET(1, "")}, true}, /* before that of rank 0 */
		{{TARGET(0, ""), TARGET(0, "")}, true},
		{{TARGET(-1, "")}, true},
		{{TARGET(0, ",\"size\":67108865")}, true},
		{{TARGET(0, ",\"n_bytes\":1125899906842625")}, true},
		{{TARGET(0, ""), PLANNED(8)}, true}, /* before all targets */
		{{TARGET(0, ""), TARGET(1, ""), TARGET(2, ""), TARGET(3, "")}, true},
		{{TARGET(0, ""), TARGET(1, ""), TARGET(2, ""), PLANNED(0)}, true},
		{{TARGET(0, ""), TARGET(1, ""), TARGET(2, ""), PLANNED(8)},
		 true}, /* too short for a plan */
		/* Larger than its file. */
		{{TARGET(0, ""), TARGET(1, ""), TARGET(2, ""), PLANNED(4096)}, true},
		{{TARGET(0, ""), TARGET(1, ""), TARGET(2, ""), PLANNED(8)}, false},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(SAID); i++) {
		struct sim *s = world_that_plans();
		struct job *planner = planner_of(s);

		snprintf(scene, sizeof(scene), "%s", SAID[i].says[0]);
		planner->hangs = true; /* its own answers are not sent */
		for (unsigned k = 0; k < 4 && SAID[i].says[k]; k++) {
			cleanup(json_freep) json_t *message = json_loads(SAID[i].says[k], 0, NULL);
			int fd = SAID[i].is_blob ? plan_fd_of("moves\0\0\1", 8)
						 : memfd_create("sim-plan", MFD_CLOEXEC);

			assert_non_null(message);
			agent_on_job(s->nodes[0].agent, planner->owner, message, &fd, 1);
			if (fd >= 0)
				(void)close(fd);
		}
		assert_fails_as_planned(s, "the planner's answer cannot be used");
	}
	scene[0] = '\0';
}

/* --- Lies --------------------------------------------------------------------------------------- */

static void test_bytes_that_are_not_those_that_were_given_are_published_nowhere(void **state)
{
	(void)state;
	for (unsigned lies = 0; lies < 2; lies++) {
		struct sim *s = scene_world(N_NODES, POLICY_ALL);
		uint64_t had[N_NODES];

		note_shards(s, had);
		s->nodes[2].lies = lies; /* lies about its sent bytes */
		s->nodes[3].n_corrupt = !lies; /* corrupts its received bytes */
		reshard_and_wait(s, "failed");
		assert_non_null(strstr(s->nodes[0].why, "that one says to have given"));
		assert_untouched_shards(s, had);
		s->nodes[2].lies = false;
		assert_reshards(s);
		sim_free(s);
	}
}

/*
 * A lie about a node's own shard harms no other node; and a coordinator cannot make a node publish
 * bytes that are not in its memory.
 */
static bool decide_otherwise(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	cleanup(json_freep) json_t *forged = NULL;

	(void)from;
	if (to != 3 || strcmp(sim_text(message, "type"), "commit") != 0)
		return true;
	forged = json_deep_copy(message);
	json_object_set_new(forged, "root", json_string(HASH));
	agent_on_message(s->nodes[to].agent, 0, forged);
	return false;
}

static void test_a_coordinator_cannot_have_published_what_was_not_verified(void **state)
{
	struct sim *s = scene_world(N_NODES, POLICY_ALL);
	uint64_t had[N_NODES];

	(void)state;
	note_shards(s, had);
	s->on_message = decide_otherwise;
	reshard_and_wait(s, "failed");
	assert_non_null(strstr(s->nodes[0].why, NOT_EVERYWHERE));
	assert_non_null(strstr(s->nodes[0].why, "decided on something else than was verified here"));
	assert_int_equal(shard_at(s, 3), had[3]);
	assert_int_not_equal(shard_at(s, 2), had[2]);
	s->on_message = NULL;
	assert_reshards(s);
	sim_free(s);
}

/* Replaces a word in the plan for node 3: of the nodes, links or moves. */
static void forge_plan(struct sim *s, struct event *e)
{
	const unsigned *word = s->userdata;
	uint8_t text[4096];
	ssize_t size = pread(e->fds[0], text, sizeof(text), 0);

	if (e->to != 3 || size < 8 || memcmp(text, "moves", 5) != 0)
		return;
	assert_true((size_t)size == 8 * N_WORDS);
	text[8 * *word + 6] ^= 1; /* 256 more, or less */
	(void)close(e->fds[0]);
	e->fds[0] = plan_fd_of(text, (size_t)size);
}

/*
 * The words are its counts, the bytes that node 0 sends, those that node 3 sends and receives, the
 * first link, and the runs and bytes of its first move. The agent cannot check the memory of other
 * nodes, but their engines can.
 */
static void test_who_is_told_another_plan_than_the_others_takes_no_part(void **state)
{
	static const unsigned WORDS[] = {
		0, 1, 2, 3, 4, 10, 11, 12, 13, 14, 15, FIRST_MOVE + 2, FIRST_MOVE + 3};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(WORDS); i++) {
		struct sim *s = scene_world(N_NODES, POLICY_ALL);
		unsigned word = WORDS[i];
		uint64_t had[N_NODES];

		snprintf(scene, sizeof(scene), "word %u", word);
		note_shards(s, had);
		s->on_blob = forge_plan;
		s->userdata = &word;
		reshard_and_wait(s, "failed");
		assert_non_null(strstr(s->nodes[0].why, "n0003"));
		assert_untouched_shards(s, had);
		s->on_blob = NULL;
		assert_reshards(s);
		sim_free(s);
	}
	scene[0] = '\0';
}

/* A false message instead of the correct one. */
struct lie {
	const char *type;
	unsigned from, to;
	const char *fields;
};

static bool tell_lie(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	const struct lie *l = s->userdata;
	cleanup(json_freep) json_t *lie = NULL, *fields = NULL;

	if (from != l->from || to != l->to || strcmp(sim_text(message, "type"), l->type) != 0)
		return true;
	lie = json_deep_copy(message);
	fields = json_loads(l->fields, 0, NULL);
	assert_non_null(fields);
	json_object_update(lie, fields);
	agent_on_message(s->nodes[to].agent, from < to ? from : from - 1, lie);
	return false;
}

/* Refused before any memory is allocated for it. */
static void test_what_is_out_of_bounds_ends_it_at_who_is_told(void **state)
{
	static const struct lie LIES[] = {
		{"ready", 2, 0, "{\"n_bytes\":0}"},
		{"ready", 2, 0, "{\"n_bytes\":-1}"},
		{"ready", 2, 0, "{\"n_bytes\":1125899906842625}"},
		{"ready", 2, 0, "{\"layout_bytes\":0}"},
		{"ready", 2, 0, "{\"layout_bytes\":67108865}"},
		{"ready", 2, 0, "{\"layout\":\"\"}"},
		{"ready", 2, 0, "{\"address\":7}"},
		{"plan", 0, 3, "{\"plan_bytes\":0}"},
		{"plan", 0, 3, "{\"plan_bytes\":1125899906842624}"},
		{"plan", 0, 3, "{\"plan\":null}"},
		{"plan", 0, 3, "{\"n_bytes\":0}"},
		{"plan", 0, 3, "{\"n_bytes\":1125899906842625}"},
		{"plan", 0, 3, "{\"layout_bytes\":67108865}"},
		{"plan", 0, 3, "{\"layout\":null}"},
		{"done", 2, 0, "{\"gave\":[]}"},
		{"done", 2, 0, "{\"took\":null}"},
		{"done", 2, 0, "{\"took\":[{}]}"},
		{"done", 3, 0, "{\"gave\":[{\"node\":\"n0002\",\"bytes\":1,\"root\":\"" HASH "\"}]}"},
		{"verified", 3, 0, "{\"root\":\"\"}"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(LIES); i++) {
		struct sim *s = scene_world(N_NODES, POLICY_ALL);
		unsigned other = LIES[i].from ? LIES[i].from : LIES[i].to;
		uint64_t had[N_NODES];

		snprintf(scene, sizeof(scene), "%s %s", LIES[i].type, LIES[i].fields);
		note_shards(s, had);
		s->on_message = tell_lie;
		s->userdata = (void *)&LIES[i];
		reshard_and_wait(s, "failed");
		assert_non_null(strstr(s->nodes[0].why, s->nodes[other].name));
		assert_untouched_shards(s, had);
		s->on_message = NULL;
		assert_reshards(s);
		sim_free(s);
	}
	scene[0] = '\0';
}

static void test_who_may_not_have_so_much_refuses_before_it_is_made(void **state)
{
	struct sim *s = scene_world(N_NODES, POLICY_ALL);

	(void)state;
	s->nodes[3].config.max_bytes = MIB;
	reshard_and_wait(s, "failed");
	assert_non_null(strstr(s->nodes[0].why, "max-bytes of n0003 is 1048576"));
	s->nodes[3].config.max_bytes = 0;
	assert_reshards(s);
	sim_free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_each_target_gets_its_part_of_what_all_sources_have),
		cmocka_unit_test(test_one_that_is_away_ends_it_with_its_name),
		cmocka_unit_test(test_one_without_room_ends_it_with_its_name),
		cmocka_unit_test(test_two_coordinators_at_once_do_not_hang),
		cmocka_unit_test_teardown(test_a_member_lost_at_any_step_leaves_all_or_none,
					  scene_tell),
		cmocka_unit_test_teardown(test_a_coordinator_lost_at_any_step_leaves_old_or_new,
					  scene_tell),
		cmocka_unit_test_teardown(test_a_cancelled_one_leaves_what_there_was, scene_tell),
		cmocka_unit_test(test_one_that_reshards_alone_survives_its_engine),
		cmocka_unit_test(test_a_planner_that_fails_dies_or_hangs_ends_it),
		cmocka_unit_test_teardown(test_what_a_planner_says_is_taken_only_in_its_form,
					  scene_tell),
		cmocka_unit_test(test_bytes_that_are_not_those_that_were_given_are_published_nowhere),
		cmocka_unit_test(test_a_coordinator_cannot_have_published_what_was_not_verified),
		cmocka_unit_test_teardown(
			test_who_is_told_another_plan_than_the_others_takes_no_part, scene_tell),
		cmocka_unit_test_teardown(test_what_is_out_of_bounds_ends_it_at_who_is_told,
					  scene_tell),
		cmocka_unit_test(test_who_may_not_have_so_much_refuses_before_it_is_made),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * Tests the status of ranks: the times of a rank add up, and words of any value are shown as a status
 */
#include "libclient/train/engine/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/num.h"
#include "libclient/train/engine/wait.h"
#include "libclient/train/plan/rank_status.h"

#define N_RANKS 3
#define UNIT_NS 1024 /* of control_activity() */
#define SECOND UINT64_C(1000000000)

/* A job of three ranks, as a reader has copied it. */
struct scene {
	struct weightd_plan *plan;
	uint64_t size;
	uint8_t *words;
	struct control_head *head;
	struct control_rank *ranks;
	struct control_status *status;
};

static struct weightd_plan *plan_make(uint32_t n_nodes)
{
	static const uint64_t shape[] = {24, 16};
	const struct weightd_train_tensor tensor = {.size = sizeof(tensor),
						    .name = "w",
						    .shape = shape,
						    .n_dims = 2,
						    .dtype = WEIGHTD_F32,
						    .role = WEIGHTD_PARAM};
	const struct weightd_group group = {.size = sizeof(group), .eps = 1e-8};
	const struct weightd_mesh_dim dim = {"dp", N_RANKS * n_nodes};
	struct weightd_plan_options options = {.size = sizeof(options),
					       .strategy = "shared",
					       .optimizer = WEIGHTD_ADAMW,
					       .groups = &group,
					       .n_groups = 1,
					       .n_copies = 1,
					       .n_nodes = n_nodes};
	struct weightd_mesh *mesh;
	struct weightd_plan *plan;

	assert_int_equal(weightd_mesh_new(&dim, 1, &mesh), 0);
	options.mesh = mesh;
	assert_int_equal(weightd_plan_new(&tensor, 1, &options, &plan), 0);
	weightd_mesh_free(mesh);
	return plan;
}

static int scene_make(void **state, uint32_t n_nodes)
{
	struct scene *s = calloc(1, sizeof(*s));
	struct control_layout layout;

	s->plan = plan_make(n_nodes);
	s->size = rank_status_size(s->plan);
	s->words = aligned_alloc(64, s->size);
	memset(s->words, 0, s->size);
	layout = control_layout(s->plan);
	s->head = (struct control_head *)(void *)s->words;
	s->ranks = (struct control_rank *)(void *)(s->words + layout.ranks);
	s->status = (struct control_status *)(void *)(s->words + layout.status);
	s->head->magic = CONTROL_MAGIC;
	s->head->abi = CONTROL_ABI;
	s->head->n_ranks = N_RANKS;
	*state = s;
	return 0;
}

static int scene_new(void **state)
{
	return scene_make(state, 1);
}

/* The copy is of the second one of two nodes. */
static int nodes_new(void **state)
{
	struct scene *s;
	int r = scene_make(state, 2);

	s = *state;
	s->head->node = 2;
	return r;
}

static int scene_free(void **state)
{
	struct scene *s = *state;

	weightd_plan_free(s->plan);
	free(s->words);
	free(s);
	return 0;
}

static struct weightd_rank_status read_at(const struct scene *s, uint32_t rank, int holder,
					  uint64_t now_ns)
{
	struct weightd_rank_status ret;

	assert_int_equal(rank_status_check(s->plan, s->words, s->size, "run"), 0);
	rank_status_read(s->plan, s->words, rank, holder, now_ns, &ret);
	return ret;
}

static struct weightd_rank_status read_now(const struct scene *s, uint32_t rank)
{
	return read_at(s, rank, 4711, num_now_ns());
}

/* --- A rank ------------------------------------------------------------------------------------- */

static void a_rank_shows_its_phase_and_whom_it_waits_for(void **state)
{
	struct scene *s = *state;
	struct weightd_rank_status seen;
	struct status rank;

	status_init(&rank, &s->status[1]);
	assert_int_equal(read_now(s, 1).phase, WEIGHTD_RANK_UPDATING);
	status_enter(&rank.main, CONTROL_COMPUTING);
	seen = read_now(s, 1);
	assert_int_equal(seen.phase, WEIGHTD_RANK_COMPUTING);
	assert_int_equal(seen.pid, 4711);
	assert_int_equal(seen.waits_for, UINT32_MAX);
	assert_int_equal(status_wait(&rank.main, CONTROL_PARAMETERS, 2), CONTROL_COMPUTING);
	seen = read_now(s, 1);
	assert_int_equal(seen.phase, WEIGHTD_RANK_WAITING);
	assert_int_equal(seen.waits_for, 2);
	assert_string_equal(seen.what, "parameters");
	assert_true(seen.since_s >= 0 && seen.since_s < 60);
	assert_int_equal(status_wait(&rank.main, CONTROL_UNITS, 0), CONTROL_WAITING);
	assert_string_equal(read_now(s, 1).what, "units");
	status_enter(&rank.main, CONTROL_DONE);
	assert_int_equal(read_at(s, 1, 0, num_now_ns()).phase, WEIGHTD_RANK_DONE);
	assert_int_equal(read_now(s, 0).phase,
			 WEIGHTD_RANK_COMPUTING); /* it has joined, and no more */
}

static void a_rank_without_a_process_is_gone_whatever_it_did(void **state)
{
	struct scene *s = *state;
	struct weightd_rank_status seen;
	struct status rank;

	status_init(&rank, &s->status[0]);
	(void)status_wait(&rank.main, CONTROL_SUMS, 2);
	seen = read_at(s, 0, 0, num_now_ns());
	assert_int_equal(seen.phase, WEIGHTD_RANK_GONE);
	assert_int_equal(seen.waits_for, UINT32_MAX);
	assert_true(isnan(seen.since_s));
}

static void the_last_loss_stays_until_there_is_another(void **state)
{
	struct scene *s = *state;
	struct status rank;

	status_init(&rank, &s->status[0]);
	assert_true(isnan(read_now(s, 0).loss));
	status_set_loss(&rank, 2.5);
	status_complete(&rank, 7);
	assert_true(read_now(s, 0).loss == 2.5);
	status_init(&rank, &s->status[0]); /* its successor */
	assert_true(read_now(s, 0).loss == 2.5);
	assert_int_equal(read_now(s, 0).step, 7);
}

static double sum_of_times(const struct weightd_rank_status *seen)
{
	return seen->computing_s + seen->waiting_s + seen->updating_s;
}

/* Whatever the scheduler does to this process: the times are between the two that surround the calls. */
static void times_of_a_step_add_up_to_its_time(void **state)
{
	struct scene *s = *state;
	struct weightd_rank_status seen;
	uint64_t outer, inner, end_inner, end_outer;
	struct status rank;

	status_init(&rank, &s->status[0]);
	outer = num_now_ns();
	status_complete(&rank, 1);
	inner = num_now_ns();
	for (int i = 0; i < 1000; i++) {
		status_enter(&rank.main, CONTROL_UPDATING);
		(void)status_wait(&rank.main, CONTROL_GRADIENTS, 1);
		status_enter(&rank.main, CONTROL_UPDATING);
		status_enter(&rank.main, CONTROL_COMPUTING);
	}
	end_inner = num_now_ns();
	status_complete(&rank, 2);
	end_outer = num_now_ns();
	seen = read_now(s, 0);
	assert_true(sum_of_times(&seen) * 1e9 > (double)(end_inner - inner) - 2 * UNIT_NS);
	assert_true(sum_of_times(&seen) * 1e9 < (double)(end_outer - outer) + 2 * UNIT_NS);
	assert_true(seen.computing_s > 0 && seen.waiting_s > 0 && seen.updating_s > 0);
	assert_int_equal(seen.step, 2);
}

static void spin_ns(uint64_t ns)
{
	for (uint64_t begin = num_now_ns(); num_now_ns() - begin < ns;)
		continue;
}

/* The wait of the thread begins before this rank waits for its sums, and ends in the middle of that. */
static void waits_of_the_thread_that_sums_are_waits_of_the_rank(void **state)
{
	struct scene *s = *state;
	struct weightd_rank_status seen;
	uint64_t begin, middle, end;
	struct status rank;

	status_init(&rank, &s->status[0]);
	status_complete(&rank, 1);
	(void)status_wait(&rank.thread, CONTROL_GRADIENTS, 2);
	spin_ns(20000);
	assert_int_equal(read_now(s, 0).phase, WEIGHTD_RANK_COMPUTING);
	begin = num_now_ns();
	status_begin_sums(&rank);
	seen = read_now(s, 0);
	assert_int_equal(seen.phase, WEIGHTD_RANK_WAITING);
	assert_int_equal(seen.waits_for, 2);
	assert_string_equal(seen.what, "gradients");
	assert_true(seen.since_s * 1e9 <= (double)(num_now_ns() - begin) + UNIT_NS);
	spin_ns(20000);
	status_enter(&rank.thread, CONTROL_UPDATING);
	middle = num_now_ns();
	assert_int_equal(read_now(s, 0).phase, WEIGHTD_RANK_UPDATING);
	spin_ns(20000);
	status_end_sums(&rank);
	end = num_now_ns();
	status_complete(&rank, 2);
	seen = read_now(s, 0);
	assert_true(seen.waiting_s * 1e9 > 20000 - 2 * UNIT_NS);
	assert_true(seen.waiting_s * 1e9 < (double)(middle - begin) + 2 * UNIT_NS);
	assert_true(seen.updating_s * 1e9 > 20000 - 2 * UNIT_NS);
	assert_true(seen.updating_s * 1e9 < (double)(end - begin) + 2 * UNIT_NS);
}

static void a_wait_ends_in_the_phase_before_it(void **state)
{
	const struct wait_reason reason = {.rank = 2, .what = "arrive"};
	struct control_word word = {0};
	struct scene *s = *state;
	struct wait_place place;
	struct status rank;

	status_init(&rank, &s->status[0]);
	wait_place_init(&place, NULL, 0, N_RANKS, NULL);
	place.lane = &rank.main;
	place.deadline_ms = 1;
	status_complete(&rank, 1);
	assert_int_equal(wait_for(&place, &word, 1, &reason), -ETIMEDOUT);
	assert_int_equal(read_now(s, 0).phase, WEIGHTD_RANK_COMPUTING);
	status_complete(&rank, 2);
	assert_true(read_now(s, 0).waiting_s >= 0.001 - 2e-9 * UNIT_NS);
}

static void the_beginning_of_a_phase_fits_beside_the_rest(void **state)
{
	const uint64_t day_ns = 86400 * SECOND;

	(void)state;
	for (uint64_t ns = 1; ns < 3000 * day_ns; ns = ns * 3 + 1) {
		uint64_t word = control_activity(CONTROL_WAITING, CONTROL_SUMS, 255, ns);

		assert_int_equal(control_activity_phase(word), CONTROL_WAITING);
		assert_int_equal(control_activity_topic(word), CONTROL_SUMS);
		assert_int_equal(control_activity_rank(word), 255);
		assert_int_equal(control_activity_ns(word), ns / UNIT_NS * UNIT_NS);
	}
}

/* --- Nodes -------------------------------------------------------------------------------------- */

static void a_rank_that_waits_for_a_node_names_it(void **state)
{
	struct scene *s = *state;
	struct weightd_rank_status seen;
	struct status rank;

	status_init(&rank, &s->status[2]);
	(void)status_wait(&rank.main, CONTROL_NODES, 0);
	s->ranks[2].traffic_sent = 4711;
	s->ranks[2].traffic_replicas = 47;
	seen = read_now(s, 2);
	assert_int_equal(seen.phase, WEIGHTD_RANK_WAITING);
	assert_int_equal(seen.waits_for, 0);
	assert_string_equal(seen.what, "nodes");
	assert_int_equal(seen.sent, 4711);
	assert_int_equal(seen.sent_replicas, 47);
	assert_int_equal(seen.rank, 2);
	assert_int_equal(seen.mesh_rank, N_RANKS + 2);
	/* There are more ranks than nodes. */
	(void)status_wait(&rank.main, CONTROL_NODES, 2);
	assert_int_equal(read_now(s, 2).waits_for, UINT32_MAX);
	(void)status_wait(&rank.main, CONTROL_SUMS, 2);
	assert_int_equal(read_now(s, 2).waits_for, 2);
	s->head->node = 3; /* as any process of the user may write */
	assert_int_equal(read_now(s, 2).mesh_rank, 2);
	s->head->node = 0; /* nobody has come */
	assert_int_equal(read_now(s, 2).mesh_rank, 2);
}

/* --- Any words ---------------------------------------------------------------------------------- */

static void expect_valid(const struct weightd_rank_status *seen, uint32_t rank, int holder)
{
	assert_int_equal(seen->rank, rank);
	assert_int_equal(seen->pid, holder);
	assert_non_null(weightd_rank_phase_name(seen->phase));
	assert_true(seen->waits_for < N_RANKS || seen->waits_for == UINT32_MAX);
	assert_non_null(memchr(seen->what, 0, sizeof(seen->what)));
	assert_true(isnan(seen->since_s) || seen->since_s >= 0);
}

static void words_of_any_value_are_a_status(void **state)
{
	struct scene *s = *state;

	for (unsigned value = 0; value < 256; value++)
		for (int holder = -1; holder < 2; holder++) {
			memset(s->ranks, (int)value, N_RANKS * sizeof(*s->ranks));
			memset(s->status, (int)value, N_RANKS * sizeof(*s->status));
			for (uint32_t rank = 0; rank < N_RANKS; rank++) {
				struct weightd_rank_status seen = read_at(s, rank, holder, SECOND);

				expect_valid(&seen, rank, holder);
			}
		}
}

static void a_rank_that_does_not_exist_is_not_named(void **state)
{
	struct scene *s = *state;
	struct weightd_rank_status seen;

	atomic_store(&s->status[0].now,
		     control_activity(CONTROL_WAITING, CONTROL_SUMS, N_RANKS, SECOND));
	seen = read_at(s, 0, 1, 3 * SECOND);
	assert_int_equal(seen.phase, WEIGHTD_RANK_WAITING);
	assert_int_equal(seen.waits_for, UINT32_MAX);
	assert_true(seen.since_s > 1.9 && seen.since_s < 2.1);
	seen = read_at(s, 0, 1, 0); /* it began later than now */
	assert_true(seen.since_s == 0);
}

static void expect_refusal(const struct scene *s, uint64_t size, int r, const char *sentence)
{
	assert_int_equal(rank_status_check(s->plan, s->words, size, "run"), r);
	if (!strstr(weightd_train_error(), sentence))
		fail_msg("'%s' is not in: %s", sentence, weightd_train_error());
}

static void words_of_another_release_are_refused(void **state)
{
	struct scene *s = *state;

	expect_refusal(s, s->size - 1, -EPROTOTYPE, "part 0 of job 'run' has");
	s->head->n_ranks = N_RANKS + 1;
	expect_refusal(s, s->size, -EPROTOTYPE, "not of this release");
	s->head->n_ranks = N_RANKS;
	s->head->abi++;
	expect_refusal(s, s->size, -EPROTOTYPE, "ours is");
	s->head->magic = 0;
	expect_refusal(s, s->size, -ENODATA, "no rank of job 'run' has begun");
}

static void phases_have_names(void **state)
{
	(void)state;
	assert_string_equal(weightd_rank_phase_name(WEIGHTD_RANK_GONE), "gone");
	assert_string_equal(weightd_rank_phase_name(WEIGHTD_RANK_DONE), "done");
	assert_null(weightd_rank_phase_name(0));
	assert_null(weightd_rank_phase_name(WEIGHTD_RANK_DONE + 1));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, scene_new, scene_free)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_rank_shows_its_phase_and_whom_it_waits_for),
		TEST(a_rank_without_a_process_is_gone_whatever_it_did),
		TEST(the_last_loss_stays_until_there_is_another),
		TEST(times_of_a_step_add_up_to_its_time),
		TEST(waits_of_the_thread_that_sums_are_waits_of_the_rank),
		TEST(a_wait_ends_in_the_phase_before_it),
		cmocka_unit_test(the_beginning_of_a_phase_fits_beside_the_rest),
		cmocka_unit_test_setup_teardown(a_rank_that_waits_for_a_node_names_it, nodes_new,
						scene_free),
		TEST(words_of_any_value_are_a_status),
		TEST(a_rank_that_does_not_exist_is_not_named),
		TEST(words_of_another_release_are_refused),
		cmocka_unit_test(phases_have_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

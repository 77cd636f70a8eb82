/*
 * Collectives on windows, between processes, against sums in the order of ranks that a plain loop makes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <sched.h>
#include <stdio.h>

#include "ipc/base/num.h"
#include "libclient/train/engine/window.h"
#include "tests/unit/long_form.h"
#include "tests/unit/train_job.h"
#include "tests/unit/train_types.h"

#define MS ((uint64_t)1000000)
#define RANKS_MAX 4
#define WINDOW_SIZE ((uint64_t)2 << 20)
#define NOTICED_MS 100 /* of a death */
#define BUSY_MS 1900 /* more, on a busy machine */

/* One test, and memory that its ranks share. */
struct scene {
	uint32_t n_ranks;
	bool spins;
	uint64_t size; /* of the window */
	int deadline_ms;
	int barrier_ms; /* deadline of a barrier; 0: deadline_ms */
	_Atomic int n_ready;
	_Atomic uint64_t died_ns;
	uint64_t woke_ns[RANKS_MAX];
	int results[RANKS_MAX];
	char sentences[RANKS_MAX][1024];
};

static struct scene *scene;

static void scene_start(uint32_t n_ranks, bool spins)
{
	scene = mmap(NULL, sizeof(*scene), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		     0);
	assert_true(scene != MAP_FAILED);
	scene->n_ranks = n_ranks;
	scene->spins = spins;
	scene->size = WINDOW_SIZE;
	scene->deadline_ms = 60000;
	train_job_start(n_ranks);
}

static void scene_stop(void)
{
	(void)munmap(scene, sizeof(*scene));
	train_job_stop();
}

/* In a rank: a failure ends it, and the test sees its status. */
#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "rank %u of %u, line %d: %s (%s)\n", (unsigned)rank,       \
				scene->n_ranks, __LINE__, #condition, weightd_train_error());      \
			_exit(1);                                                                  \
		}                                                                                  \
	} while (0)

static int open_window(uint32_t rank, struct weightd_window **ret)
{
	struct weightd_train_options options = {
		.size = sizeof(options),
		.token = TRAIN_JOB_TOKEN,
		.rank = rank,
		.deadline_ms = scene->deadline_ms,
	};
	int r = weightd_window_open(NULL, &options, scene->size, ret);

	if (r == 0)
		(*ret)->place.spins = scene->spins;
	return r;
}

static void run_ranks(int (*fn)(uint32_t rank, void *data), void *data)
{
	pid_t pids[RANKS_MAX];

	for (uint32_t i = 0; i < scene->n_ranks; i++)
		pids[i] = train_job_fork(fn, i, data);
	for (uint32_t i = 0; i < scene->n_ranks; i++)
		assert_int_equal(train_job_join(pids[i]), 0);
}

/* --- Reference ---------------------------------------------------------------------------------- */

/* Sums of these depend on their order. */
static float value_of(uint32_t rank, uint64_t i, uint64_t seed)
{
	uint64_t x = (i * 4 + rank + 1) * 0x9e3779b97f4a7c15ull ^ seed * 0xbf58476d1ce4e5b9ull;
	float fraction;

	x ^= x >> 29;
	x *= 0x94d049bb133111ebull;
	x ^= x >> 32;
	fraction = (float)(x & 0xffffff) / 16777216 - 0.5f;
	return fraction * (float)(1u << ((x >> 24) & 15));
}

/* Element i of a rank, as it lies in memory. */
static uint32_t element_bits(enum weightd_dtype dtype, uint32_t rank, uint64_t i, uint64_t seed)
{
	float value = value_of(rank, i, seed);
	uint32_t bits;

	if (dtype == WEIGHTD_BF16)
		return reference_round(value, KERNEL_BF16);
	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

static uint32_t sum_bits(enum weightd_dtype dtype, uint32_t n_ranks, uint64_t i, uint64_t seed)
{
	float sum = 0;
	uint32_t bits;

	for (uint32_t rank = 0; rank < n_ranks; rank++) {
		float x = value_of(rank, i, seed);

		if (dtype == WEIGHTD_BF16)
			x = reference_widen(reference_round(x, KERNEL_BF16), KERNEL_BF16);
		sum = rank ? sum + x : x;
	}
	if (dtype == WEIGHTD_BF16)
		return reference_round(sum, KERNEL_BF16);
	memcpy(&bits, &sum, sizeof(bits));
	return bits;
}

static uint32_t bits_at(const void *p, enum weightd_dtype dtype, uint64_t i)
{
	return dtype == WEIGHTD_F32 ? ((const uint32_t *)p)[i] : ((const uint16_t *)p)[i];
}

static uint64_t size_of(enum weightd_dtype dtype)
{
	return dtype == WEIGHTD_F32 ? 4 : 2;
}

/* --- Sums and copies ---------------------------------------------------------------------------- */

/* Elements of one collective of each kind: below and above the stage, whole lines and not. */
static const uint64_t lengths[] = {0,   1,   5,    16,   31,   32,   33,    64,    100,        129,
				   257, 999, 2048, 5000, 8192, 9001, 40000, 70001, 131072 + 17};
static const enum weightd_dtype dtypes[] = {WEIGHTD_F32, WEIGHTD_BF16};

#define CANARY 0x5a

static void fill(struct weightd_window *win, enum weightd_dtype dtype, uint64_t offset, uint64_t n,
		 uint64_t seed)
{
	uint32_t rank = weightd_window_rank(win);
	uint8_t *own = weightd_window_data(win, rank);

	memset(own, CANARY, WINDOW_SIZE);
	for (uint64_t i = 0; i < n; i++) {
		uint32_t bits = element_bits(dtype, rank, i, seed);

		memcpy(own + offset + i * size_of(dtype), &bits, size_of(dtype));
	}
}

static bool are_canaries(const uint8_t *bytes, uint64_t n)
{
	return !n || (bytes[0] == CANARY && !memcmp(bytes, bytes + 1, n - 1));
}

/* Bytes around the collective belong to the caller. */
static void check_canaries(struct weightd_window *win, uint64_t offset, uint64_t size)
{
	uint32_t rank = weightd_window_rank(win);
	const uint8_t *own = weightd_window_data(win, rank);

	CHECK(are_canaries(own, offset));
	CHECK(are_canaries(own + offset + size, WINDOW_SIZE - offset - size));
}

static void check_all_reduce(struct weightd_window *win, enum weightd_dtype dtype, uint64_t offset,
			     uint64_t n, uint64_t seed)
{
	uint32_t rank = weightd_window_rank(win);
	const uint8_t *own = weightd_window_data(win, rank);

	fill(win, dtype, offset, n, seed);
	CHECK(weightd_window_all_reduce(win, offset, n, dtype) == 0);
	for (uint64_t i = 0; i < n; i++)
		CHECK(bits_at(own + offset, dtype, i) == sum_bits(dtype, win->n_ranks, i, seed));
	check_canaries(win, offset, n * size_of(dtype));
}

static void check_reduce_scatter(struct weightd_window *win, enum weightd_dtype dtype,
				 uint64_t offset, uint64_t n, uint64_t seed)
{
	uint32_t rank = weightd_window_rank(win);
	const uint8_t *own = weightd_window_data(win, rank);
	uint64_t cuts[RANKS_MAX + 1];

	CHECK(weightd_cuts(n, 32, win->n_ranks, cuts) == 0);
	fill(win, dtype, offset, n, seed);
	CHECK(weightd_window_reduce_scatter(win, offset, n, dtype) == 0);
	for (uint64_t i = cuts[rank]; i < cuts[rank + 1]; i++)
		CHECK(bits_at(own + offset, dtype, i) == sum_bits(dtype, win->n_ranks, i, seed));
	check_canaries(win, offset, n * size_of(dtype));
}

static void check_gathered(struct weightd_window *win, const uint8_t *to, enum weightd_dtype dtype,
			   uint64_t n, uint64_t seed)
{
	uint32_t rank = weightd_window_rank(win);
	uint64_t cuts[RANKS_MAX + 1];

	CHECK(weightd_cuts(n, 32, win->n_ranks, cuts) == 0);
	for (uint32_t source = 0; source < win->n_ranks; source++)
		for (uint64_t i = cuts[source]; i < cuts[source + 1]; i++)
			CHECK(bits_at(to, dtype, i) == element_bits(dtype, source, i, seed));
}

static void check_all_gather(struct weightd_window *win, enum weightd_dtype dtype, uint64_t offset,
			     uint64_t n, uint64_t seed)
{
	static uint8_t out[WINDOW_SIZE + 64];
	uint32_t rank = weightd_window_rank(win);
	const uint8_t *own = weightd_window_data(win, rank);
	uint64_t size = n * size_of(dtype);
	uint8_t *to = out + 4 * (seed % 3); /* aligned to cache lines or not */

	fill(win, dtype, offset, n, seed);
	CHECK(weightd_window_all_gather(win, offset, n, dtype, NULL) == 0);
	check_gathered(win, own + offset, dtype, n, seed);
	check_canaries(win, offset, size);

	fill(win, dtype, offset, n, seed + 1);
	memset(out, CANARY, sizeof(out));
	CHECK(weightd_window_all_gather(win, offset, n, dtype, to) == 0);
	check_gathered(win, to, dtype, n, seed + 1);
	CHECK(are_canaries(to + size, (uint64_t)(out + sizeof(out) - to) - size));
}

static void check_broadcast(struct weightd_window *win, uint64_t offset, uint64_t n_bytes,
			    uint64_t seed)
{
	uint32_t rank = weightd_window_rank(win), root = (uint32_t)(seed % win->n_ranks);
	uint8_t *own = weightd_window_data(win, rank);

	memset(own, CANARY, WINDOW_SIZE);
	for (uint64_t i = 0; i < n_bytes; i++)
		own[offset + i] = (uint8_t)element_bits(WEIGHTD_F32, rank, i, seed);
	CHECK(weightd_window_broadcast(win, offset, n_bytes, root) == 0);
	for (uint64_t i = 0; i < n_bytes; i++)
		CHECK(own[offset + i] == (uint8_t)element_bits(WEIGHTD_F32, root, i, seed));
	check_canaries(win, offset, n_bytes);
}

static int run_collectives(uint32_t rank, void *data)
{
	struct weightd_window *win;

	(void)data;
	CHECK(open_window(rank, &win) == 0);
	CHECK(weightd_window_rank(win) == rank);
	CHECK(weightd_window_n_ranks(win) == scene->n_ranks);
	CHECK(weightd_window_data(win, scene->n_ranks) == NULL);
	for (size_t i = 0; i < ARRAY_LEN(lengths); i++) {
		uint64_t n = lengths[i], offset = i % 3 * 64 * (i + 1), seed = 100 * i;

		for (size_t j = 0; j < ARRAY_LEN(dtypes); j++) {
			check_all_reduce(win, dtypes[j], offset, n, seed + j);
			check_reduce_scatter(win, dtypes[j], offset, n, seed + j);
			check_all_gather(win, dtypes[j], offset, n, seed + j);
		}
		check_broadcast(win, offset, n, seed);
		check_broadcast(win, offset, n * 2 + 1, seed + 1);
	}
	/* Up to the last byte. */
	check_all_reduce(win, WEIGHTD_F32, 0, WINDOW_SIZE / 4, 7);
	check_broadcast(win, WINDOW_SIZE - 64, 63, 1);
	CHECK(weightd_window_barrier(win) == 0);
	weightd_window_free(win);
	return 0;
}

static void collectives_equal_sums_in_the_order_of_ranks(void **state)
{
	(void)state;
	for (uint32_t n = 1; n <= RANKS_MAX; n++)
		for (size_t spins = 0; spins < 2; spins++) {
			if (!is_some_pair(n, spins, 2))
				continue;
			scene_start(n, spins);
			run_ranks(run_collectives, NULL);
			assert_int_equal(train_job->n_left, n);
			scene_stop();
		}
}

/* Large enough for non-temporal stores. */
#define LARGE ((uint64_t)20 << 20)

static int run_large(uint32_t rank, void *data)
{
	struct weightd_window *win;
	uint64_t n = LARGE / 4 - 5;
	const uint8_t *own;
	uint8_t *out = malloc(LARGE);
	float *values;

	(void)data;
	CHECK(out && open_window(rank, &win) == 0);
	own = weightd_window_data(win, rank);
	values = weightd_window_data(win, rank);
	for (uint64_t i = 0; i < n; i++)
		values[i] = value_of(rank, i, 1);
	CHECK(weightd_window_all_gather(win, 0, n, WEIGHTD_F32, out) == 0);
	check_gathered(win, out, WEIGHTD_F32, n, 1);
	CHECK(weightd_window_all_reduce(win, 0, n, WEIGHTD_F32) == 0);
	for (uint64_t i = 0; i < n; i++)
		CHECK(bits_at(own, WEIGHTD_F32, i) == sum_bits(WEIGHTD_F32, win->n_ranks, i, 1));
	CHECK(weightd_window_barrier(win) == 0);
	for (uint64_t i = 0; i < n; i++)
		values[i] = value_of(rank, i, 2);
	CHECK(weightd_window_broadcast(win, 0, LARGE, 1) == 0);
	for (uint64_t i = 0; i < n; i++)
		CHECK(bits_at(own, WEIGHTD_F32, i) == element_bits(WEIGHTD_F32, 1, i, 2));
	weightd_window_free(win);
	free(out);
	return 0;
}

static void large_collectives_are_complete_when_they_return(void **state)
{
	(void)state;
	for (uint32_t n = 2; n <= 3; n++) {
		scene_start(n, false);
		scene->size = LARGE;
		run_ranks(run_large, NULL);
		scene_stop();
	}
}

/* Ranks that are late must find what was handed over before: sizes vary, so that stage and ranges alternate. */
static int run_many(uint32_t rank, void *data)
{
	struct weightd_window *win;
	float *own;

	(void)data;
	CHECK(open_window(rank, &win) == 0);
	own = weightd_window_data(win, rank);
	for (uint64_t round = 0; round < 3000; round++) {
		uint64_t n = 1 + round * 7919 % 3000;

		if (round % 7 == rank)
			(void)sched_yield();
		for (uint64_t i = 0; i < n; i += 61)
			own[i] = value_of(rank, i, round);
		CHECK(weightd_window_all_reduce(win, 0, n, WEIGHTD_F32) == 0);
		for (uint64_t i = 0; i < n; i += 61)
			CHECK(bits_at(own, WEIGHTD_F32, i) ==
			      sum_bits(WEIGHTD_F32, win->n_ranks, i, round));
	}
	weightd_window_free(win);
	return 0;
}

static void collectives_follow_each_other(void **state)
{
	(void)state;
	for (uint32_t n = 2; n <= RANKS_MAX; n++)
		for (int spins = 0; spins < (n == 2 ? 2 : 1); spins++) {
			scene_start(n, spins);
			run_ranks(run_many, NULL);
			scene_stop();
		}
}

/* --- Trouble ------------------------------------------------------------------------------------ */

static void keep_result(uint32_t rank, int r)
{
	scene->woke_ns[rank] = num_now_ns();
	scene->results[rank] = r;
	strncpy(scene->sentences[rank], weightd_train_error(), sizeof(scene->sentences[0]) - 1);
}

/* All but rank 1 enter a barrier, which it never does. */
static int enter_without_rank_1(uint32_t rank, void *data)
{
	struct weightd_window *win;

	(void)data;
	CHECK(open_window(rank, &win) == 0);
	if (scene->barrier_ms)
		win->place.deadline_ms = scene->barrier_ms;
	scene->n_ready++;
	while (rank == 1)
		(void)pause();
	keep_result(rank, weightd_window_barrier(win));
	CHECK(weightd_window_barrier(win) == scene->results[rank]);
	CHECK(strstr(weightd_train_error(), "an earlier collective"));
	weightd_window_free(win);
	return 0;
}

static void await_ready(int n)
{
	uint64_t deadline = num_now_ns() + 30000 * MS;

	while (scene->n_ready < n) {
		assert_true(num_now_ns() < deadline);
		(void)sched_yield();
	}
}

static void assert_contains(const char *text, const char *part)
{
	if (!strstr(text, part))
		fail_msg("'%s' is not in '%s'", part, text);
}

static void a_death_in_a_barrier_fails_the_others(void **state)
{
	char pid_text[48];

	(void)state;
	for (int spins = 0; spins < 2; spins++) {
		pid_t pids[3];

		scene_start(3, spins);
		for (uint32_t i = 0; i < 3; i++)
			pids[i] = train_job_fork(enter_without_rank_1, i, NULL);
		await_ready(3);
		scene->died_ns = num_now_ns();
		assert_int_equal(kill(pids[1], SIGKILL), 0);
		for (uint32_t i = 0; i < 3; i++)
			assert_int_equal(train_job_join(pids[i]), i == 1 ? 128 + SIGKILL : 0);
		(void)snprintf(pid_text, sizeof(pid_text), "rank 1 (process %d) died", pids[1]);
		for (uint32_t i = 0; i < 3; i += 2) {
			uint64_t took = scene->woke_ns[i] - scene->died_ns;

			assert_int_equal(scene->results[i], -EOWNERDEAD);
			assert_contains(scene->sentences[i], pid_text);
			assert_contains(scene->sentences[i], "enter the barrier");
			if (took > (NOTICED_MS + BUSY_MS) * MS)
				fail_msg("rank %u noticed the death after %.1f ms", i,
					 (double)took / 1e6);
			print_message("rank %u noticed the death after %.1f ms\n", i,
				      (double)took / 1e6);
		}
		scene_stop();
	}
}

static void a_stopped_rank_ends_a_barrier_at_the_deadline(void **state)
{
	pid_t pids[3];

	(void)state;
	scene_start(3, false);
	scene->barrier_ms = 2000;
	for (uint32_t i = 0; i < 3; i++)
		pids[i] = train_job_fork(enter_without_rank_1, i, NULL);
	await_ready(3);
	assert_int_equal(kill(pids[1], SIGSTOP), 0);
	assert_int_equal(train_job_join(pids[0]), 0);
	assert_int_equal(train_job_join(pids[2]), 0);
	for (uint32_t i = 0; i < 3; i += 2) {
		assert_int_equal(scene->results[i], -ETIMEDOUT);
		assert_contains(scene->sentences[i], "rank 1 (process ");
		assert_contains(scene->sentences[i], "within 2 s");
	}
	assert_int_equal(kill(pids[1], SIGKILL), 0);
	assert_int_equal(train_job_join(pids[1]), 128 + SIGKILL);
	scene_stop();
}

static int open_and_keep_result(uint32_t rank, void *data)
{
	struct weightd_window *win = NULL;

	(void)data;
	keep_result(rank, open_window(rank, &win));
	weightd_window_free(win);
	return 0;
}

static void a_rank_that_never_opens_is_named(void **state)
{
	(void)state;
	scene_start(2, false);
	scene->deadline_ms = 200;
	assert_int_equal(train_job_join(train_job_fork(open_and_keep_result, 0, NULL)), 0);
	assert_int_equal(scene->results[0], -ETIMEDOUT);
	assert_contains(scene->sentences[0], "rank 1 did not open the window within 0.2 s");
	/* Rank 0 was here: the window is not resumed. */
	assert_int_equal(train_job_join(train_job_fork(open_and_keep_result, 0, NULL)), 0);
	assert_int_equal(scene->results[0], -EOWNERDEAD);
	assert_contains(scene->sentences[0], "a window is not resumed");
	scene_stop();
}

static int open_of_other_size(uint32_t rank, void *data)
{
	if (rank == 1)
		scene->size /= 2;
	return open_and_keep_result(rank, data);
}

static void ranks_with_windows_of_different_sizes_are_refused(void **state)
{
	(void)state;
	scene_start(2, false);
	scene->deadline_ms = 200;
	assert_int_equal(train_job_join(train_job_fork(open_of_other_size, 0, NULL)), 0);
	assert_int_equal(train_job_join(train_job_fork(open_of_other_size, 1, NULL)), 0);
	assert_int_equal(scene->results[1], -EPROTOTYPE);
	assert_contains(scene->sentences[1], "1048576 bytes");
	assert_contains(scene->sentences[1], "2097152");
	scene_stop();
}

static int run_bad_input(uint32_t rank, void *data)
{
	struct weightd_window *win;

	(void)data;
	scene->size = 100;
	CHECK(open_window(rank, &win) == -EINVAL);
	CHECK(strstr(weightd_train_error(), "multiple of 64"));
	CHECK(open_window(1, &win) == -EINVAL);
	scene->size = WINDOW_SIZE;
	CHECK(open_window(1, &win) == -EINVAL);
	CHECK(strstr(weightd_train_error(), "the job has 1 ranks"));
	CHECK(open_window(rank, &win) == 0);
	CHECK(weightd_window_all_reduce(win, 4, 1, WEIGHTD_F32) == -EINVAL);
	CHECK(weightd_window_all_reduce(win, 0, 1, WEIGHTD_F64) == -EOPNOTSUPP);
	CHECK(weightd_window_all_reduce(win, 64, WINDOW_SIZE / 4, WEIGHTD_F32) == -EINVAL);
	CHECK(strstr(weightd_train_error(), "2097152 bytes from offset 64"));
	CHECK(weightd_window_all_reduce(win, 0, UINT64_MAX / 2, WEIGHTD_F32) == -EINVAL);
	CHECK(weightd_window_broadcast(win, 0, WINDOW_SIZE + 1, 0) == -EINVAL);
	CHECK(weightd_window_broadcast(win, UINT64_MAX - 63, 64, 0) == -EINVAL);
	CHECK(weightd_window_broadcast(win, 0, 1, 1) == -EINVAL);
	CHECK(weightd_window_all_reduce(win, 0, 5, WEIGHTD_F32) == 0);
	weightd_window_free(win);
	return 0;
}

static void bad_input_has_a_sentence_and_breaks_nothing(void **state)
{
	(void)state;
	scene_start(1, false);
	run_ranks(run_bad_input, NULL);
	scene_stop();
}

/* A child that outlives its dead parent could write into the window of a successor. */
static int fork_with_window(uint32_t rank, void *data)
{
	struct weightd_window *win;
	volatile uint8_t *own;
	pid_t pid;
	int status;

	(void)data;
	CHECK(open_window(rank, &win) == 0);
	own = weightd_window_data(win, rank);
	own[0] = 1;
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		(void)signal(SIGSEGV, SIG_DFL); /* cmocka's goes on with the tests */
		own[0] = 2;
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFSIGNALED(status) || WEXITSTATUS(status) != 0); /* a sanitizer exits */
	CHECK(own[0] == 1);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		CHECK(weightd_window_barrier(win) == -ECHILD);
		CHECK(weightd_window_all_reduce(win, 0, 16, WEIGHTD_F32) == -ECHILD);
		CHECK(strstr(weightd_train_error(), "parent"));
		weightd_window_free(win);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	CHECK(train_job->n_left == 0);
	weightd_window_free(win);
	return 0;
}

static void a_forked_child_cannot_take_part(void **state)
{
	(void)state;
	scene_start(1, false);
	run_ranks(fork_with_window, NULL);
	scene_stop();
}

/* --- Profile ------------------------------------------------------------------------------------ */

static int run_profiles(uint32_t rank, void *data)
{
	static const struct {
		enum weightd_collective collective;
		double factor; /* of nccl-tests, 3 ranks */
	} rows[] = {
		{WEIGHTD_ALL_REDUCE, 4.0 / 3},
		{WEIGHTD_REDUCE_SCATTER, 2.0 / 3},
		{WEIGHTD_ALL_GATHER, 2.0 / 3},
		{WEIGHTD_BROADCAST, 1},
	};
	struct weightd_profile p = {.size = sizeof(p)};
	struct weightd_window *win;

	(void)data;
	CHECK(open_window(rank, &win) == 0);
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		CHECK(weightd_window_profile(win, rows[i].collective, 65536, WEIGHTD_F32, 11, &p) ==
		      0);
		CHECK(p.collective == rows[i].collective && p.n_bytes == 65536 && p.n_ranks == 3);
		CHECK(p.n_rounds == 11 && p.min_us > 0 && p.median_us >= p.min_us);
		CHECK(p.algbw > 0.999 * 65536e6 / p.median_us &&
		      p.algbw < 1.001 * 65536e6 / p.median_us);
		CHECK(p.busbw > 0.999 * p.algbw * rows[i].factor);
		CHECK(p.busbw < 1.001 * p.algbw * rows[i].factor);
	}
	CHECK(weightd_window_profile(win, WEIGHTD_BARRIER, 0, WEIGHTD_F32, 0, &p) == 0);
	CHECK(p.n_rounds >= 7 && p.median_us > 0 && p.algbw == 0 && p.busbw == 0);
	CHECK(weightd_window_profile(win, WEIGHTD_ALL_REDUCE, WINDOW_SIZE + 4, WEIGHTD_F32, 1,
				     &p) == -EINVAL);
	CHECK(weightd_window_profile(win, 0, 4, WEIGHTD_F32, 1, &p) == -EINVAL);
	CHECK(strcmp(weightd_collective_name(WEIGHTD_BROADCAST), "broadcast") == 0);
	CHECK(!weightd_collective_name(99) && !weightd_collective_name(0));
	weightd_window_free(win);
	return 0;
}

static void profiles_have_the_factors_of_nccl_tests(void **state)
{
	(void)state;
	scene_start(3, false);
	run_ranks(run_profiles, NULL);
	scene_stop();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(collectives_equal_sums_in_the_order_of_ranks),
		cmocka_unit_test(large_collectives_are_complete_when_they_return),
		cmocka_unit_test(collectives_follow_each_other),
		cmocka_unit_test(a_death_in_a_barrier_fails_the_others),
		cmocka_unit_test(a_stopped_rank_ends_a_barrier_at_the_deadline),
		cmocka_unit_test(a_rank_that_never_opens_is_named),
		cmocka_unit_test(ranks_with_windows_of_different_sizes_are_refused),
		cmocka_unit_test(bad_input_has_a_sentence_and_breaks_nothing),
		cmocka_unit_test(a_forked_child_cannot_take_part),
		cmocka_unit_test(profiles_have_the_factors_of_nccl_tests),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * Tests values that are written between steps: all ranks see them, and a rank that is killed at any point of it repeats
 * its calls
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/train_node_jobs.h"

#define POINTS 5 /* of rank 0 in a write at which it may die; other ranks have one less */

/* A run, and the death of a rank in it. */
struct scene {
	struct setup setup;
	bool is_partial; /* the last write is of one tensor alone */
	uint32_t victim; /* of the mesh */
	unsigned fatal; /* the point, from 1 on; 0: none */
	_Atomic unsigned n_points; /* that the victim has reached */
	_Atomic bool has_died;
};

static void point_pass(struct scene *s, uint32_t rank)
{
	if (rank != s->victim || s->has_died || ++s->n_points != s->fatal)
		return;
	s->has_died = true;
	raise(SIGKILL);
}

static float value_second(uint64_t i, float shift)
{
	return value_first(i) * 0.5f + shift;
}

/* Writes each tensor, or the first one; `shift` tells writes apart. */
static void write_tensors(struct scene *s, struct weightd_train *t, float shift, bool is_partial)
{
	const struct weightd_plan *p = weightd_train_plan(t);
	const float frozen[] = {shift, 1, 2, 3, 4, 5, 6, 7, 8};

	for (uint32_t i = 0; i < N_TENSORS; i++) {
		struct plan_interval elements = plan_elements(p, &p->tensors[i]);
		uint64_t n = elements.end - elements.begin;
		float *values = malloc(n * sizeof(float));

		for (uint64_t k = 0; k < n; k++)
			values[k] = value_second(elements.begin + k, shift);
		if (plan_is_trained(&p->tensors[i]))
			assert(weightd_train_write(t, i, values) == 0);
		free(values);
		if (i == 0)
			point_pass(s, rank_of(t));
		if (is_partial)
			return;
	}
	assert(weightd_train_write(t, BASE, frozen) == 0);
}

static bool values_are(const struct weightd_train *t, float shift)
{
	const struct weightd_plan *p = weightd_train_plan(t);
	enum kernel_type type = optimizer_type(p->param_dtype);

	for (uint32_t i = 0; i < N_TENSORS; i++) {
		struct plan_interval elements = plan_elements(p, &p->tensors[i]);

		if (!plan_is_trained(&p->tensors[i]))
			continue;
		for (uint64_t k = 0; k < elements.end - elements.begin; k++) {
			float value = value_second(elements.begin + k, shift);
			uint8_t rounded[4] = {0};

			kernels_get()->round(rounded, type, &value, 1);
			if (memcmp(kernel_element(weightd_train_param(t, i), type, k), rounded,
				   kernel_type_size(type)))
				return false;
		}
	}
	return !memcmp(weightd_train_param(t, BASE), &shift, sizeof(shift));
}

/* One write. A process that repeats one which is complete, or of another node, writes other values, which must not count. */
static int write_once(struct scene *s, struct weightd_train *t, float shift, bool is_repeated,
		      bool is_partial)
{
	uint32_t rank = rank_of(t);

	point_pass(s, rank);
	if (weightd_train_write_begin(t) < 0)
		return rank_fail("begin", 0);
	point_pass(s, rank);
	if (t->arena.rank == 0)
		write_tensors(s, t, is_repeated || rank ? 100 : shift, is_partial);
	point_pass(s, rank);
	if (weightd_train_write_end(t) < 0)
		return rank_fail("end", 0);
	point_pass(s, rank);
	return 0;
}

/* Rank 0 died behind a write, the first or the second one after that step. */
static bool is_complete(const struct scene *s, uint32_t rank, uint64_t step, unsigned number)
{
	unsigned before = step ? 2 * POINTS : 0;

	return rank == 0 && s->victim == 0 && s->has_died && s->fatal >= before + number * POINTS &&
	       s->fatal <= before + 2 * POINTS;
}

/* Two writes before the first step and two more in the middle. */
static int write_main(uint32_t rank, void *data)
{
	struct scene *s = data;
	struct weightd_train *t = rank_open(&s->setup, rank);

	while (weightd_train_step(t) < N_STEPS) {
		uint64_t step = weightd_train_step(t);

		if (step == 0 || step == 3) {
			bool is_partial = s->is_partial && step;

			if (write_once(s, t, (float)step - 7, is_complete(s, rank, step, 1), false) ||
			    write_once(s, t, (float)step, is_complete(s, rank, step, 2), is_partial))
				return 1;
			if (!is_partial && !values_are(t, (float)step))
				return rank_fail("other values", 0);
		}
		if (rank_step(&s->setup, t) < 0)
			return rank_fail("update", 0);
		rank_record(t);
	}
	if (weightd_train_close(t) < 0)
		return rank_fail("close", 0);
	weightd_train_free(t);
	return 0;
}

static struct scene *scene_new(const struct setup *setup)
{
	struct scene *s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			       -1, 0);

	assert_ptr_not_equal(s, MAP_FAILED);
	s->setup = *setup;
	return s;
}

static int scene_main(uint32_t rank, void *data)
{
	const struct scene *s = data;

	return node_run(&s->setup, rank, data, false, write_main);
}

/* Runs it; the victim is started anew after its death. */
static struct union_result scene_run(struct scene *s, uint32_t victim, unsigned fatal)
{
	pid_t pids[RANKS_MAX];

	s->victim = victim;
	s->fatal = fatal;
	s->n_points = 0;
	s->has_died = false;
	nodes_start(&s->setup);
	for (uint32_t rank = 0; rank < s->setup.n_ranks; rank++)
		pids[rank] = train_job_fork(scene_main, rank, s);
	if (fatal) {
		assert_int_equal(train_job_join(pids[victim]), 128 + SIGKILL);
		pids[victim] = train_job_fork(scene_main, victim, s);
	}
	for (uint32_t rank = 0; rank < s->setup.n_ranks; rank++)
		assert_int_equal(train_job_join(pids[rank]), 0);
	return nodes_stop(&s->setup);
}

static const struct setup setups[] = {
	{.strategy = "shared", .n_ranks = 2, .form = WEIGHTD_STEP_FUSED},
	{.strategy = "zero1", .n_ranks = 3, .form = WEIGHTD_STEP_FUSED, .dtype = WEIGHTD_BF16},
	{.strategy = "replicated",
	 .n_ranks = 2,
	 .form = WEIGHTD_STEP_TWO_PHASE,
	 .dtype = WEIGHTD_F16,
	 .init_scale = 1024},
};

/* Two ranks, on one node or on two: the sums are the same. */
static const struct setup spread_setups[] = {
	{.strategy = "shared", .n_ranks = 2, .form = WEIGHTD_STEP_TWO_PHASE},
	{.strategy = "shared", .n_ranks = 2, .form = WEIGHTD_STEP_TWO_PHASE, .dtype = WEIGHTD_BF16},
	{.strategy = "replicated", .n_ranks = 2, .form = WEIGHTD_STEP_TWO_PHASE, .dtype = WEIGHTD_BF16},
};

static void test_all_ranks_see_what_rank_0_writes(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(setups); i++) {
		struct scene *s = scene_new(&setups[i]);
		struct union_result written = scene_run(s, UINT32_MAX, 0);

		union_free(&written);
		(void)munmap(s, sizeof(*s));
	}
}

static void test_all_nodes_see_what_node_0_writes(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(spread_setups); i++) {
		struct scene *s = scene_new(&spread_setups[i]);
		struct union_result one, two;

		s->is_partial = true;
		one = scene_run(s, UINT32_MAX, 0);
		s->setup.n_nodes = 2;
		two = scene_run(s, UINT32_MAX, 0);
		union_compare(&one, &two);
		union_free(&one);
		union_free(&two);
		(void)munmap(s, sizeof(*s));
	}
}

/* In each of four writes, two after each of two steps, from the write `first` on. */
static void expect_repeats(struct scene *s, const struct union_result *whole, uint32_t victim,
			   unsigned first)
{
	unsigned n_points = victim % ranks_of(&s->setup) ? POINTS - 1 : POINTS;

	for (unsigned fatal = 1 + first * n_points; fatal <= 2 * 2 * n_points; fatal++) {
		struct union_result killed = scene_run(s, victim, fatal);

		union_compare(whole, &killed);
		union_free(&killed);
	}
}

static void test_a_rank_that_is_killed_in_a_write_repeats_it(void **state)
{
	struct scene *s = scene_new(&setups[1]);
	struct union_result whole = scene_run(s, UINT32_MAX, 0);

	(void)state;
	for (uint32_t victim = 0; victim < 2; victim++)
		expect_repeats(s, &whole, victim, 0);
	union_free(&whole);
	(void)munmap(s, sizeof(*s));
}

static void test_a_rank_of_a_node_that_is_killed_in_a_write_repeats_it(void **state)
{
	struct scene *s = scene_new(&spread_setups[1]);
	struct union_result whole;

	(void)state;
	s->setup.n_nodes = 2;
	s->setup.n_ranks = 4;
	whole = scene_run(s, UINT32_MAX, 0);
	for (uint32_t victim = 0; victim < 4; victim += 3)
		expect_repeats(s, &whole, victim, 3);
	union_free(&whole);
	(void)munmap(s, sizeof(*s));
}

/* --- Misuse --------------------------------------------------------------------------------------------- */

static bool fails(int r, int expected, const char *sentence)
{
	if (r == expected && strstr(weightd_train_error(), sentence))
		return true;
	(void)rank_fail(sentence, r);
	return false;
}

static int misuse_main(uint32_t rank, void *data)
{
	const struct setup *setup = data;
	struct weightd_train *t = rank_open(setup, rank);
	float values[29 * 31] = {0};
	double lr[N_GROUPS];
	uint64_t cursor;
	struct weightd_update u = rank_arguments(setup, t, lr, &cursor);

	if (!fails(weightd_train_write(t, 0, values), -EINVAL, "call weightd_train_write_begin()") ||
	    !fails(weightd_train_write_end(t), -EINVAL, "call weightd_train_write_begin() before"))
		return 1;
	assert(weightd_train_write_begin(t) == 0);
	if (!fails(weightd_train_write_begin(t), -EINVAL, "was called before, without") ||
	    !fails(weightd_train_write(t, N_TENSORS, values), -ENOENT, "no tensor 5") ||
	    !fails(weightd_train_update(t, &u), -EINVAL, "call weightd_train_write_end()"))
		return 1;
	if (rank && !fails(weightd_train_write(t, 0, values), -EINVAL, "cannot write 'wide'"))
		return 1;
	/* A buffer is each rank's own. */
	assert(weightd_train_write(t, COUNT, (int64_t[]){rank, 5, 6}) == 0);
	assert(weightd_train_write_end(t) == 0);
	assert(((int64_t *)weightd_train_buffer(t, COUNT))[0] == rank);
	assert(weightd_train_write_begin(t) == 0 && weightd_train_write_end(t) == 0);
	return weightd_train_update(t, &u) == 0 && weightd_train_close(t) == 0 ? 0 : 1;
}

/* Buffers that are written after a step are found by a restart, as parameters are. */
static int buffers_main(uint32_t rank, void *data)
{
	const struct setup *setup = data;
	struct weightd_train *t = rank_open(setup, rank);
	const int64_t *count, written[] = {rank, 5, 6};
	int r = 0;

	assert(rank_step(setup, t) == 0 && weightd_train_write_begin(t) == 0);
	assert(weightd_train_write(t, COUNT, written) == 0 && weightd_train_write_end(t) == 0);
	weightd_train_free(t);
	t = rank_open(setup, rank);
	count = weightd_train_buffer(t, COUNT);
	if (memcmp(count, written, sizeof(written)) != 0) {
		fprintf(stderr, "rank %u has %lld, %lld, %lld again\n", rank, (long long)count[0],
			(long long)count[1], (long long)count[2]);
		r = 1;
	}
	weightd_train_free(t);
	return r;
}

static int stale_main(uint32_t rank, void *data)
{
	struct weightd_train *t = rank_open(data, rank);

	return fails(weightd_train_write_begin(t), -EINVAL, "staleness") ? 0 : 1;
}

static void run_both(struct setup *setup, int (*fn)(uint32_t rank, void *data))
{
	pid_t pids[2];

	train_job_start(2);
	for (uint32_t rank = 0; rank < 2; rank++)
		pids[rank] = train_job_fork(fn, rank, setup);
	for (uint32_t rank = 0; rank < 2; rank++)
		assert_int_equal(train_job_join(pids[rank]), 0);
	train_job_stop();
}

static void test_calls_out_of_order_are_refused(void **state)
{
	struct setup setup = {.strategy = "shared", .n_ranks = 2}, stale = setup;

	(void)state;
	stale.staleness = 1;
	run_both(&setup, misuse_main);
	run_both(&stale, stale_main);
}

static void test_a_restart_finds_buffers_that_were_written(void **state)
{
	struct setup setup = {.strategy = "shared", .n_ranks = 2};

	(void)state;
	run_both(&setup, buffers_main);
}

int main(void)
{
	const struct CMUnitTest all[] = {
		cmocka_unit_test(test_all_ranks_see_what_rank_0_writes),
		cmocka_unit_test(test_all_nodes_see_what_node_0_writes),
		cmocka_unit_test(test_a_rank_that_is_killed_in_a_write_repeats_it),
		cmocka_unit_test(test_a_rank_of_a_node_that_is_killed_in_a_write_repeats_it),
		cmocka_unit_test(test_a_restart_finds_buffers_that_were_written),
		cmocka_unit_test(test_calls_out_of_order_are_refused),
	};

	return cmocka_run_group_tests(all, NULL, NULL);
}

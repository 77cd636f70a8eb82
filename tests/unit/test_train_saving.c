/*
 * Tests checkpoints: all types and strategies, saved during training and loaded with any number of ranks
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/unit/train_folder.h"
#include "tests/unit/train_ranks.h"

#define SAVED 9 /* the step whose checkpoint is loaded; some step before it was skipped */

struct run {
	struct setup setup;
	const char *save, *load; /* folders; NULL: not */
	uint32_t n_saved; /* ranks that saved what is loaded */
	bool is_late; /* loads after weightd_train_begin() */
	bool waits; /* for a save before the next step */
	uint64_t until; /* the last step */
};

/* Types of PARAM and GRAD, with scaling where the form has it. */
static const struct setup types[] = {
	{.nan_step = 4},
	{.dtype = WEIGHTD_BF16, .nan_step = 4},
	{.dtype = WEIGHTD_BF16, .grad_dtype = WEIGHTD_F32},
	{.dtype = WEIGHTD_F16, .init_scale = 1024, .overflow_step = 7},
	{.init_scale = 100, .overflow_step = 8},
};

static const struct setup pool_rows[] = {
	{.strategy = "zero2", .form = WEIGHTD_STEP_TWO_PHASE},
	{.strategy = "zero3", .form = WEIGHTD_STEP_TWO_PHASE},
};
#define ZERO2 ARRAY_LEN(rows)
#define N_ROWS (ARRAY_LEN(rows) + ARRAY_LEN(pool_rows))

static struct setup setup_of(size_t row, size_t type, uint32_t n_ranks)
{
	size_t i = row % N_ROWS;
	struct setup setup = i < ZERO2 ? rows[i] : pool_rows[i - ZERO2];

	if (types[type].init_scale > 0 && setup.form == WEIGHTD_STEP_FUSED)
		setup.form = WEIGHTD_STEP_TWO_PHASE;
	setup.n_ranks = n_ranks;
	setup.dtype = types[type].dtype;
	setup.grad_dtype = types[type].grad_dtype;
	setup.init_scale = types[type].init_scale;
	setup.overflow_step = types[type].overflow_step;
	setup.nan_step = types[type].nan_step;
	return setup;
}

/* --- A rank ------------------------------------------------------------------------------------------ */

static struct weightd_train *open_run(const struct run *run, uint32_t rank)
{
	struct weightd_train_options options = {.size = sizeof(options),
						.token = TRAIN_JOB_TOKEN,
						.rank = rank,
						.deadline_ms = 60000};
	struct weightd_plan *plan = plan_make(&run->setup);
	struct weightd_train *t;
	int r = weightd_train_open(NULL, plan, &options, &t);

	weightd_plan_free(plan);
	if (r == 0 && run->load && !run->is_late)
		r = weightd_train_load(t, run->load);
	else if (r == 0 && rank == 0 && weightd_train_is_empty(t))
		rank_fill(t);
	if (r == 0)
		r = weightd_train_begin(t);
	if (r == 0 && run->load && run->is_late)
		r = weightd_train_load(t, run->load);
	if (r == 0)
		return t;
	(void)rank_fail("open", r);
	exit(1);
}

/* Those of the checkpoint's rank 0, where the number of ranks is another one. */
static bool state_fits(const struct run *run, struct weightd_train *t)
{
	uint64_t size, step = weightd_train_step(t);
	const uint64_t *cursor = weightd_train_state(t, &size);
	const int64_t *count = weightd_train_buffer(t, COUNT);

	if (!run->load || run->n_saved == run->setup.n_ranks)
		return rank_state_fits(t);
	return step == SAVED && size == sizeof(*cursor) && *cursor == SAVED * 1000 &&
	       count[0] == SAVED * (SAVED + 1) / 2;
}

static int run_main(uint32_t rank, void *data)
{
	const struct run *run = data;
	struct weightd_checkpoint_options keep = {.size = sizeof(keep), .keep = 1};
	struct weightd_train *t = open_run(run, rank);

	rank_record(t);
	if (!state_fits(run, t))
		return rank_fail("state of another step", 0);
	if (t->status.words->step != weightd_train_step(t))
		return rank_fail("status of another step", 0);
	while (weightd_train_step(t) < run->until) {
		int r = rank_step(&run->setup, t);

		rank_record(t);
		if (r == -EDOM)
			r = 0;
		if (r == 0 && run->save && weightd_train_step(t) == SAVED)
			r = weightd_train_save(t, run->save, &keep);
		if (r < 0)
			return rank_fail("step", r);
	}
	if (weightd_train_save_wait(t) < 0 || weightd_train_close(t) < 0)
		return rank_fail("end", 0);
	weightd_train_free(t);
	return 0;
}

static struct result result_of(const struct run *run)
{
	pid_t pids[RANKS_MAX];
	struct result result;

	train_job_start(run->setup.n_ranks);
	scales_start();
	for (uint32_t rank = 0; rank < run->setup.n_ranks; rank++)
		pids[rank] = train_job_fork(run_main, rank, (void *)run);
	for (uint32_t rank = 0; rank < run->setup.n_ranks; rank++)
		assert_int_equal(train_job_join(pids[rank]), 0);
	result = result_read(&run->setup);
	train_job_stop();
	return result;
}

static int expect(int r, int wanted, const char *sentence)
{
	if (r == wanted && strstr(weightd_train_error(), sentence))
		return 0;
	fprintf(stderr, "%d, not %d: %s; not: %s\n", r, wanted, weightd_train_error(), sentence);
	return 1;
}

/* --- Tests ------------------------------------------------------------------------------------------- */

static void test_a_loaded_run_goes_on_with_the_same_bits_in_every_strategy(void **state)
{
	(void)state;
	for (size_t row = 0; row < N_ROWS; row += is_long_form() ? 1 : 2) {
		size_t type = row % ARRAY_LEN(types);
		struct run save = {.setup = setup_of(row, type, 3), .save = folder, .until = N_STEPS};
		struct run load = {.setup = setup_of(row + 3, type, 3),
				   .load = folder,
				   .n_saved = 3,
				   .is_late = row % 2,
				   .until = N_STEPS};
		struct result plain = oracle_run(&save.setup);
		struct result whole = result_of(&save), loaded = result_of(&load);

		result_compare(&whole, &plain);
		result_compare(&loaded, &whole);
		result_free(&plain);
		result_free(&whole);
		result_free(&loaded);
	}
}

static void test_every_type_has_the_same_values_with_any_number_of_ranks(void **state)
{
	(void)state;
	for (size_t type = 0; type < ARRAY_LEN(types); type++) {
		struct run save = {.setup = setup_of(type, type, 4), .save = folder, .until = SAVED};
		struct result saved = result_of(&save);

		for (uint32_t n = 1; n <= RANKS_MAX; n++) {
			if (!is_some_pair(type, n, 2))
				continue;
			struct run load = {.setup = setup_of(type + n, type, n),
					   .load = folder,
					   .n_saved = 4,
					   .is_late = n / 2 % 2,
					   .until = SAVED};
			struct result loaded = result_of(&load);

			result_compare(&loaded, &saved);
			result_free(&loaded);
		}
		result_free(&saved);
	}
}

/* A process was killed in a load, and its successor trains without one. */
static int given_up_main(uint32_t rank, void *data)
{
	const struct run *run = data;
	struct weightd_train *t = rank_open(&run->setup, rank);
	uint64_t step;

	wait_publish(&trainer_words(t)->loaded, control_loaded(SAVED));
	weightd_train_free(t);
	t = rank_open(&run->setup, rank);
	assert(rank_step(&run->setup, t) == 0);
	weightd_train_free(t);
	t = rank_open(&run->setup, rank);
	step = weightd_train_step(t);
	weightd_train_free(t);
	if (step == 1)
		return 0;
	fprintf(stderr, "the job goes on after step %llu\n", (unsigned long long)step);
	return 1;
}

static void test_a_load_that_was_given_up_does_not_undo_steps(void **state)
{
	struct run run = {.setup = setup_of(0, 0, 1)};

	(void)state;
	train_job_start(1);
	assert_int_equal(train_job_join(train_job_fork(given_up_main, 0, &run)), 0);
	train_job_stop();
}

static int first_main(uint32_t rank, void *data)
{
	const struct run *run = data;
	struct weightd_train *t = open_run(run, rank);

	return weightd_train_save(t, run->save, NULL) < 0 || weightd_train_save_wait(t) < 0;
}

/* Rank 0 begins, and never loads. */
static int unled_main(uint32_t rank, void *data)
{
	const struct run *run = data;
	struct weightd_train *t = open_run(run, rank);
	int r;

	if (rank == 0)
		return pause();
	t->place.start_ms = 100;
	r = weightd_train_load(t, run->save);
	if (r == -ETIMEDOUT)
		return 0;
	fprintf(stderr, "the load returned %d\n", r);
	return 1;
}

static void test_a_load_of_step_0_waits_for_the_other_ranks(void **state)
{
	struct run run = {.setup = setup_of(0, 0, 2), .save = folder};
	pid_t pids[2];

	(void)state;
	train_job_start(2);
	for (uint32_t rank = 0; rank < 2; rank++)
		pids[rank] = train_job_fork(first_main, rank, &run);
	for (uint32_t rank = 0; rank < 2; rank++)
		assert_int_equal(train_job_join(pids[rank]), 0);
	train_job_stop();
	train_job_start(2);
	for (uint32_t rank = 0; rank < 2; rank++)
		pids[rank] = train_job_fork(unled_main, rank, &run);
	assert_int_equal(train_job_join(pids[1]), 0);
	assert_int_equal(kill(pids[0], SIGKILL), 0);
	assert_int_equal(train_job_join(pids[0]), 128 + SIGKILL);
	train_job_stop();
}

/* The thread ends with its trainer, in the middle of what it writes or waits for. */
static int freed_main(uint32_t rank, void *data)
{
	const struct run *run = data;
	struct weightd_train *t = open_run(run, rank);

	if (rank_step(&run->setup, t) < 0 || weightd_train_save(t, run->save, NULL) < 0)
		return rank_fail("save", 0);
	weightd_train_free(t);
	return 0;
}

static void test_a_trainer_that_is_freed_ends_its_save(void **state)
{
	struct run run = {.setup = setup_of(0, 0, 3), .save = folder};
	pid_t pids[RANKS_MAX];

	(void)state;
	train_job_start(3);
	for (uint32_t rank = 0; rank < 3; rank++)
		pids[rank] = train_job_fork(freed_main, rank, &run);
	for (uint32_t rank = 0; rank < 3; rank++)
		assert_int_equal(train_job_join(pids[rank]), 0);
	train_job_stop();
}

/* A checkpoint and a restart have the buffers that were written after the last step, as they have the parameters. */
static int written_main(uint32_t rank, void *data)
{
	const struct run *run = data;
	struct weightd_train *t = open_run(run, rank);
	int64_t *count = weightd_train_buffer(t, COUNT);

	if (weightd_train_step(t) == 0) {
		assert(rank_step(&run->setup, t) == 0 && rank_step(&run->setup, t) == 0);
		assert(weightd_train_write_begin(t) == 0);
		assert(weightd_train_write(t, COUNT, (int64_t[]){rank, -5, 6}) == 0);
		count[2] = 7; /* as a program does that has a view of it */
		assert(weightd_train_write_end(t) == 0);
		assert(!run->save || weightd_train_save(t, run->save, NULL) == 0);
		assert(weightd_train_save_wait(t) == 0);
		return 0; /* without leaving the job */
	}
	if (count[0] == rank && count[1] == -5 && count[2] == 7)
		return weightd_train_close(t) < 0;
	fprintf(stderr, "buffers of rank %u: %ld %ld %ld\n", rank, (long)count[0], (long)count[1],
		(long)count[2]);
	return 1;
}

static void test_buffers_that_were_written_between_steps_are_kept(void **state)
{
	struct run run = {.setup = setup_of(0, 0, 2), .save = folder};
	struct run load = {.setup = setup_of(0, 0, 2), .load = folder};

	(void)state;
	train_job_start(2);
	for (int start = 0; start < 2; start++) { /* the second one goes on with the job */
		pid_t pids[] = {train_job_fork(written_main, 0, &run),
				train_job_fork(written_main, 1, &run)};

		assert_int_equal(train_job_join(pids[0]) + train_job_join(pids[1]), 0);
	}
	train_job_stop();
	train_job_start(2);
	{
		pid_t pids[] = {train_job_fork(written_main, 0, &load),
				train_job_fork(written_main, 1, &load)};

		assert_int_equal(train_job_join(pids[0]) + train_job_join(pids[1]), 0);
	}
	train_job_stop();
}

static void test_a_scale_grows_after_an_interval_that_was_shortened(void **state)
{
	struct run save = {.setup = setup_of(0, 4, 1), .save = folder, .until = SAVED};
	struct run load = {.load = folder, .n_saved = 1, .until = SAVED + 1};
	struct result saved, loaded;

	(void)state;
	save.setup.overflow_step = 0;
	load.setup = save.setup;
	save.setup.interval = 1000;
	saved = result_of(&save);
	loaded = result_of(&load);
	assert_true(saved.scales.scales[SAVED] == 100);
	assert_true(loaded.scales.scales[SAVED] == 100);
	assert_true(loaded.scales.scales[SAVED + 1] == 200);
	result_free(&saved);
	result_free(&loaded);
}

/*
 * One rank does not save step 1, as after a kill between the step and the save, and has begun the next save before the
 * other one notices.
 */
static int passed_main(uint32_t rank, void *data)
{
	const struct run *run = data;
	bool skips = rank == run->setup.stop_rank;
	struct weightd_train *t = open_run(run, rank);
	int wrong = 0;

	(void)alarm(20);
	assert(rank_step(&run->setup, t) == 0);
	assert(skips || weightd_train_save(t, run->save, NULL) == 0);
	if (!run->waits)
		assert(rank_step(&run->setup, t) == 0);
	if (!skips)
		wrong = expect(weightd_train_save_wait(t), -EINVAL,
			       "took step 2 without saving step 1");
	if (run->waits)
		assert(rank_step(&run->setup, t) == 0);
	if (weightd_train_save(t, run->save, NULL) < 0 || weightd_train_save_wait(t) < 0)
		return rank_fail("save", 0);
	return wrong || weightd_train_close(t) < 0;
}

static void test_a_rank_that_skips_a_save_ends_it_for_the_others(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 8; i++) {
		struct run run = {.setup = setup_of(i / 4 ? ZERO2 : 0, 0, 2),
				  .save = folder,
				  .waits = i / 2 % 2};
		pid_t pids[2];

		run.setup.stop_rank = i % 2;
		train_job_start(2);
		for (uint32_t rank = 0; rank < 2; rank++)
			pids[rank] = train_job_fork(passed_main, rank, &run);
		for (uint32_t rank = 0; rank < 2; rank++)
			assert_int_equal(train_job_join(pids[rank]), 0);
		train_job_stop();
	}
}

/* --- Refusals ---------------------------------------------------------------------------------------- */

static int refused_main(uint32_t rank, void *data)
{
	const struct run *run = data;
	struct weightd_train *t = open_run(run, rank);
	struct weightd_checkpoint_options small = {.size = 4};
	int wrong = 0;

	wrong += expect(weightd_train_save(t, "", NULL), -EINVAL, "no folder to save to was named");
	wrong += expect(weightd_train_save(t, run->save, &small), -EINVAL, "size");
	wrong += expect(weightd_train_load(t, "/nowhere"), -ENOENT, "/nowhere");
	assert(weightd_train_write_begin(t) == 0);
	wrong += expect(weightd_train_save(t, run->save, NULL), -EINVAL, "write_end");
	assert(weightd_train_write_end(t) == 0);
	assert(rank_step(&run->setup, t) == 0);
	wrong += expect(weightd_train_save(t, run->save, NULL) < 0, 0, "");
	wrong += expect(weightd_train_save_wait(t), 0, "");
	wrong += expect(weightd_train_load(t, run->save), -EALREADY, "has begun step 1");
	return wrong || weightd_train_close(t) < 0;
}

static void test_calls_at_the_wrong_time_are_refused(void **state)
{
	struct run run = {.setup = setup_of(0, 0, 1), .save = folder};

	(void)state;
	train_job_start(1);
	assert_int_equal(train_job_join(train_job_fork(refused_main, 0, &run)), 0);
	train_job_stop();
}

/* Rank 0's files have the frozen parameters, of which a save has no copy. */
static int frozen_main(uint32_t rank, void *data)
{
	const struct run *run = data;
	struct weightd_train *t = open_run(run, rank);
	int wrong = 0;

	assert(rank_step(&run->setup, t) == 0);
	assert(rank ||
	       weightd_train_save(t, run->save, NULL) == 0); /* lasts until rank 1 takes part */
	assert(weightd_train_write_begin(t) == 0);
	if (rank == 0)
		wrong += expect(weightd_train_write(t, BASE,
						    "Other parameters, of the same 35 bytes."),
				-EBUSY, "'base' is frozen, and a save");
	assert(weightd_train_write_end(t) == 0);
	assert(!rank || weightd_train_save(t, run->save, NULL) == 0);
	assert(weightd_train_save_wait(t) == 0 && weightd_train_write_begin(t) == 0);
	if (rank == 0)
		wrong += expect(weightd_train_write(t, BASE,
						    "Other parameters, of the same 35 bytes."),
				0, "");
	assert(weightd_train_write_end(t) == 0);
	return wrong || weightd_train_close(t) < 0;
}

static void test_a_frozen_parameter_that_is_being_saved_is_not_written(void **state)
{
	struct run run = {.setup = setup_of(0, 0, 2), .save = folder};
	pid_t pids[2];

	(void)state;
	train_job_start(2);
	for (uint32_t rank = 0; rank < 2; rank++)
		pids[rank] = train_job_fork(frozen_main, rank, &run);
	for (uint32_t rank = 0; rank < 2; rank++)
		assert_int_equal(train_job_join(pids[rank]), 0);
	train_job_stop();
}

static int stale_main(uint32_t rank, void *data)
{
	const struct run *run = data;
	struct weightd_train *t = open_run(run, rank);

	return expect(weightd_train_save(t, run->save, NULL), -EINVAL, "with staleness");
}

static void test_a_plan_with_staleness_has_no_checkpoints(void **state)
{
	struct run run = {.setup = rows[0], .save = folder};

	(void)state;
	run.setup.n_ranks = 1;
	run.setup.staleness = 2;
	train_job_start(1);
	assert_int_equal(train_job_join(train_job_fork(stale_main, 0, &run)), 0);
	train_job_stop();
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, folder_make, folder_remove)
	const struct CMUnitTest tests[] = {
		TEST(test_a_loaded_run_goes_on_with_the_same_bits_in_every_strategy),
		TEST(test_every_type_has_the_same_values_with_any_number_of_ranks),
		TEST(test_a_load_of_step_0_waits_for_the_other_ranks),
		TEST(test_a_load_that_was_given_up_does_not_undo_steps),
		TEST(test_a_trainer_that_is_freed_ends_its_save),
		TEST(test_buffers_that_were_written_between_steps_are_kept),
		TEST(test_a_scale_grows_after_an_interval_that_was_shortened),
		TEST(test_a_rank_that_skips_a_save_ends_it_for_the_others),
		TEST(test_calls_at_the_wrong_time_are_refused),
		TEST(test_a_frozen_parameter_that_is_being_saved_is_not_written),
		TEST(test_a_plan_with_staleness_has_no_checkpoints),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

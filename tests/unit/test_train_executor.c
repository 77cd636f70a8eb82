/*
 * Tests the executor: the steps of each strategy, what a caller may do wrong, and ranks that are late or dead
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <sys/time.h>

#include "tests/unit/train_ranks.h"

static void test_every_strategy_is_the_plain_loop(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		for (uint32_t n = 1; n <= RANKS_MAX; n++) {
			struct setup setup = rows[i];

			setup.n_ranks = n;
			if (is_some_pair(i, n, 2))
				expect_oracle(&setup);
		}
}

static void test_unequal_weights_are_the_weighted_mean(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct setup setup = rows[i];

		if (pools_grads(&setup))
			continue;
		setup.n_ranks = 3;
		setup.is_weighted = true;
		expect_oracle(&setup);
	}
}

static void test_nan_of_one_rank_skips_the_step_on_all(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct setup setup = rows[i];

		setup.n_ranks = 2;
		setup.nan_step = 5;
		expect_oracle(&setup);
	}
}

/* Types of PARAM and GRAD; the scale is such that some steps overflow in F16, and others do not. */
static const struct setup types[] = {
	{.dtype = WEIGHTD_BF16},
	{.dtype = WEIGHTD_BF16, .grad_dtype = WEIGHTD_F32},
	{.dtype = WEIGHTD_F16},
	{.dtype = WEIGHTD_F16, .init_scale = 262144},
	{.dtype = WEIGHTD_F16, .grad_dtype = WEIGHTD_F32, .init_scale = 1024, .overflow_step = 7},
	{.init_scale = 100, .overflow_step = 1},
};

static bool setup_set_type(struct setup *setup, const struct setup *type)
{
	setup->dtype = type->dtype;
	setup->grad_dtype = type->grad_dtype;
	setup->init_scale = type->init_scale;
	setup->overflow_step = type->overflow_step;
	return !(setup->init_scale > 0 && setup->form == WEIGHTD_STEP_FUSED);
}

static void test_16_bits_and_scaling_are_those_of_a_plain_loop(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++)
		for (size_t k = 0; k < ARRAY_LEN(types); k++) {
			struct setup setup = rows[i];

			setup.n_ranks = 2 + k % 2;
			setup.is_weighted = i % 3 == 1;
			setup.nan_step = 5;
			/* Each row and each type is in several. */
			if (setup_set_type(&setup, &types[k]) && (i + k) % 3 == 0 &&
			    is_some_pair(i, k, 2))
				expect_oracle(&setup);
		}
}

static void test_some_steps_of_an_unfit_scale_overflow(void **state)
{
	struct setup setup = {.strategy = "shared", .n_ranks = 2, .form = WEIGHTD_STEP_TWO_PHASE};
	struct result ours;
	unsigned n = 0, n_grown = 0;

	(void)state;
	assert_true(setup_set_type(&setup, &types[3]));
	ours = run_whole(&setup);
	for (uint64_t step = 1; step <= N_STEPS; step++) {
		n += ours.scales.overflowed[step];
		n_grown += ours.scales.scales[step] > ours.scales.scales[step - 1];
	}
	assert_true(ours.scales.overflowed[1] && n > 2 && n < N_STEPS / 2 && n_grown > 2);
	result_free(&ours);
}

/* Runs `fn` as rank 0 beside a rank 1 that does as rank_main(). */
static void run_beside(const struct setup *setup, int (*fn)(uint32_t rank, void *data))
{
	pid_t pids[2];

	train_job_start(2);
	pids[0] = train_job_fork(fn, 0, (void *)setup);
	pids[1] = train_job_fork(rank_main, 1, (void *)setup);
	assert_int_equal(train_job_join(pids[0]), 0);
	assert_int_equal(train_job_join(pids[1]), 0);
	train_job_stop();
}

static int count_traffic_main(uint32_t rank, void *data)
{
	const struct setup *setup = data;
	struct weightd_train *t = rank_open(setup, rank);
	struct weightd_traffic plan = {.size = sizeof(plan)}, counted = {.size = sizeof(counted)};
	uint64_t n_filled; /* first values, for copies of other ranks */

	assert(weightd_plan_traffic(weightd_train_plan(t), rank, &plan) == 0);
	assert(weightd_train_traffic(t, &counted) == 0);
	n_filled = counted.written;
	while (weightd_train_step(t) < N_STEPS)
		assert(rank_step(setup, t) == 0);
	assert(weightd_train_traffic(t, &counted) == 0);
	if (counted.read != plan.read * N_STEPS ||
	    counted.written - n_filled != plan.written * N_STEPS || counted.sent != 0)
		return rank_fail("traffic", 0);
	if (trainer_words(t)->traffic_read != counted.read ||
	    trainer_words(t)->traffic_written != counted.written)
		return rank_fail("traffic in the words of the job", 0);
	return weightd_train_close(t) == 0 ? 0 : 1;
}

static void test_traffic_is_what_the_plan_predicts(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct setup setup = rows[i];

		setup.n_ranks = 2;
		run_beside(&setup, count_traffic_main);
		(void)setup_set_type(&setup, &types[i / 2 % 2]);
		if (is_some_pair(i, 0, 2))
			run_beside(&setup, count_traffic_main);
	}
}

static bool update_fails(struct weightd_train *t, const struct weightd_update *u, const char *word)
{
	if (weightd_train_update(t, u) == -EINVAL && strstr(weightd_train_error(), word))
		return true;
	(void)rank_fail(word, 0);
	return false;
}

static int bad_arguments_main(uint32_t rank, void *data)
{
	const struct setup *setup = data;
	struct weightd_train *t = rank_open(setup, rank);
	double lr[N_GROUPS];
	uint64_t cursor;
	struct weightd_update good = rank_arguments(setup, t, lr, &cursor), u;
	char large[65] = {0};

	u = good, u.lr = NULL;
	assert(update_fails(t, &u, "lr is missing"));
	u = good, u.lr = (double[]){1, NAN};
	assert(update_fails(t, &u, "group 1"));
	u = good, u.weight = -1;
	assert(update_fails(t, &u, "weight is -1"));
	u = good, u.weight = 1e300; /* a few of them have no sum */
	assert(update_fails(t, &u, "weight is 1e+300; give a number from 0 to 1e+30"));
	u = good, u.weight = NAN;
	assert(update_fails(t, &u, "weight is nan"));
	u = good, u.max_norm = 1;
	assert(update_fails(t, &u, "the form 'two-phase'"));
	u = good, u.state = large, u.state_size = sizeof(large);
	assert(update_fails(t, &u, "raise state_size"));
	u = good, u.size = 0;
	assert(update_fails(t, &u, "size"));
	assert(weightd_train_ready(t, N_TENSORS) == -ENOENT);
	assert(weightd_train_ready(t, COUNT) == -EINVAL);
	assert(!weightd_train_param(t, COUNT) && !weightd_train_grad(t, N_TENSORS) &&
	       !weightd_train_buffer(t, 0));
	assert(weightd_train_fill(t, 0, large) == -EALREADY);
	assert(trainer_word(&trainer_words(t)->grad) == 0);
	weightd_train_free(t);
	return rank_main(rank, data);
}

static void test_bad_arguments_change_nothing(void **state)
{
	(void)state;
	run_beside(&(struct setup){.strategy = "shared", .n_ranks = 2}, bad_arguments_main);
}

/* Fills its buffers where the job has its parameters already. */
static int late_buffers_main(uint32_t rank, void *data)
{
	const struct setup *setup = data;
	struct weightd_train *t = rank_open(setup, rank);
	const int64_t values[] = {3, 4, 5}, zeros[3] = {0};
	const float params[37] = {0};

	/* The parameters are there, which is nothing to the buffers. */
	assert(!weightd_train_is_empty(t) && weightd_train_step(t) == 0);
	assert(weightd_train_fill(t, COUNT, values) == 0);
	assert(memcmp(weightd_train_buffer(t, COUNT), values, sizeof(values)) == 0);
	assert(weightd_train_fill(t, 1, params) == -EALREADY);
	assert(weightd_train_fill(t, COUNT, zeros) == 0); /* as rank_main() expects them */
	assert(rank_step(setup, t) == 0);
	assert(weightd_train_fill(t, COUNT, values) == -EALREADY);
	assert(strstr(weightd_train_error(), "'count'"));
	weightd_train_free(t);
	return rank_main(rank, data);
}

static void test_each_rank_fills_its_buffers_until_its_first_step(void **state)
{
	struct setup setup = {.strategy = "shared", .n_ranks = 2};
	pid_t pids[2];

	(void)state;
	train_job_start(2);
	pids[0] = train_job_fork(rank_main, 0, &setup);
	pids[1] = train_job_fork(late_buffers_main, 1, &setup);
	for (int i = 0; i < 2; i++)
		assert_int_equal(train_job_join(pids[i]), 0);
	train_job_stop();
	/* Rank 0 as well. */
	run_beside(&setup, late_buffers_main);
}

static int forked_main(uint32_t rank, void *data)
{
	struct weightd_train *t = rank_open(data, rank);
	pid_t pid = fork();
	uint64_t size;

	/* The journal is not mapped in the child. */
	if (pid == 0)
		_exit(weightd_train_update(t, NULL) == -ECHILD &&
				      weightd_train_ready(t, 0) == -ECHILD &&
				      weightd_train_close(t) == -ECHILD &&
				      !weightd_train_state(t, &size) && size == 0 &&
				      isnan(weightd_train_scale(t)) && !weightd_train_overflowed(t)
			      ? 0
			      : 1);
	assert(train_job_join(pid) == 0);
	weightd_train_free(t);
	return rank_main(rank, data);
}

static void test_forked_child_is_no_rank(void **state)
{
	(void)state;
	run_beside(&(struct setup){.strategy = "shared", .n_ranks = 2}, forked_main);
}

/* --- Ranks that are late or dead -------------------------------------------------------------------------- */

/* Words for one rank to tell another, beside the job. */
static struct control_word *signal_word;

static void signal_wait(uint64_t value)
{
	struct wait_place p;

	wait_place_init(&p, NULL, 0, 1, NULL);
	assert(wait_for(&p, signal_word, value, &(struct wait_reason){.what = "signal"}) == 0);
}

static int late_main(uint32_t rank, void *data)
{
	const struct setup *setup = data;

	signal_wait(1);
	return rank_main(rank, (void *)setup);
}

/* `first` as rank 0 gives `second` the signal. */
static void run_both_late(const struct setup *setup, int (*first)(uint32_t rank, void *data),
			  int (*second)(uint32_t rank, void *data))
{
	struct result ours, plain;
	pid_t pids[2];

	signal_word = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	train_job_start(2);
	scales_start();
	pids[0] = train_job_fork(first, 0, (void *)setup);
	pids[1] = train_job_fork(second, 1, (void *)setup);
	assert_int_equal(train_job_join(pids[0]), 0);
	assert_int_equal(train_job_join(pids[1]), 0);
	ours = result_read(setup);
	plain = oracle_run(setup);
	result_compare(&ours, &plain);
	result_free(&ours);
	result_free(&plain);
	train_job_stop();
	(void)munmap(signal_word, 4096);
}

static void run_beside_late(const struct setup *setup, int (*fn)(uint32_t rank, void *data))
{
	run_both_late(setup, fn, late_main);
}

static int impatient_main(uint32_t rank, void *data)
{
	const struct setup *setup = data;
	struct setup short_deadline = *setup;
	struct weightd_train *t;
	double lr[N_GROUPS];
	uint64_t cursor;
	struct weightd_update u;

	short_deadline.deadline_ms = 100;
	t = rank_open(&short_deadline, rank);
	u = rank_arguments(setup, t, lr, &cursor);
	rank_compute(setup, t);
	for (int i = 0; i < 3; i++) {
		assert(weightd_train_update(t, &u) == -ETIMEDOUT);
		assert(strstr(weightd_train_error(), "rank 1") &&
		       strstr(weightd_train_error(), "step 1"));
		assert(weightd_train_step(t) == 0);
	}
	wait_publish(signal_word, 1);
	t->place.deadline_ms = 60000;
	t->overlap.place.deadline_ms = 60000;
	assert(weightd_train_update(t, &u) == 0);
	assert(weightd_train_step(t) == 1 && rank_state_fits(t));
	weightd_train_free(t);
	return rank_main(rank, data);
}

static void test_failed_update_is_repeated(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct setup setup = rows[i];

		if (pools_grads(&setup)) /* these wait before the update: see test_waits_for_buckets_are_repeated */
			continue;
		setup.n_ranks = 2;
		run_beside_late(&setup, impatient_main);
	}
}

static void ignore_signal(int signal)
{
	(void)signal;
}

/* Has this process interrupted so often; 0: no more. */
static void send_signals(int every_ms)
{
	struct itimerval often = {.it_interval.tv_usec = every_ms * 1000,
				  .it_value.tv_usec = every_ms * 1000};

	(void)signal(SIGALRM, every_ms ? ignore_signal : SIG_DFL);
	(void)setitimer(ITIMER_REAL, &often, NULL);
	if (!every_ms)
		(void)alarm(360); /* as train_job_fork() does */
}

static int interrupted_main(uint32_t rank, void *data)
{
	const struct setup *setup = data;
	struct setup interruptible = *setup;
	struct weightd_train *t;
	double lr[N_GROUPS];
	uint64_t cursor;
	struct weightd_update u;
	int r;

	interruptible.interruptible = true;
	t = rank_open(&interruptible, rank);
	u = rank_arguments(setup, t, lr, &cursor);
	rank_compute(setup, t);
	send_signals(5);
	for (int i = 0; i < 3; i++) {
		assert(weightd_train_update(t, &u) == -EINTR);
		assert(strstr(weightd_train_error(), "a signal interrupted rank 0"));
		assert(weightd_train_step(t) == 0);
	}
	wait_publish(signal_word, 1);
	while ((r = weightd_train_update(t, &u)) == -EINTR)
		continue;
	send_signals(0);
	assert(r == 0 && weightd_train_step(t) == 1 && rank_state_fits(t));
	weightd_train_free(t);
	return rank_main(rank, data);
}

/* The end of the overlap's thread does not wait for others. */
static int interrupted_for_good_main(uint32_t rank, void *data)
{
	struct setup setup = *(const struct setup *)data;
	struct weightd_train *t;
	double lr[N_GROUPS];
	uint64_t cursor;
	struct weightd_update u;

	setup.interruptible = true;
	setup.deadline_ms = -1;
	t = rank_open(&setup, rank);
	u = rank_arguments(&setup, t, lr, &cursor);
	rank_compute(&setup, t);
	send_signals(5);
	assert(weightd_train_update(t, &u) == -EINTR);
	send_signals(0);
	weightd_train_free(t);
	wait_publish(signal_word, 1);
	return rank_main(rank, data);
}

/* A call that waits for the sums of a rank that is late. */
static int impatient_bucket_main(uint32_t rank, void *data)
{
	struct setup setup = *(const struct setup *)data;
	struct weightd_train *t;

	setup.deadline_ms = 200;
	t = rank_open(&setup, rank);
	assert(weightd_train_bucket_open(t, 0) == 0);
	assert(rank_compute(&setup, t) == -ETIMEDOUT);
	for (int i = 0; i < 2; i++) {
		assert(weightd_train_bucket_open(t, 1) == -ETIMEDOUT);
		assert(strstr(weightd_train_error(), "rank 1"));
	}
	weightd_train_free(t);
	wait_publish(signal_word, 1);
	return rank_main(rank, data);
}

static void test_waits_for_buckets_are_repeated(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct setup setup = rows[i];

		if (!pools_grads(&setup))
			continue;
		setup.n_ranks = 2;
		run_beside_late(&setup, impatient_bucket_main);
	}
}

static void test_interrupted_update_is_repeated(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct setup setup = rows[i];

		if (pools_grads(&setup)) /* these wait before the update: see test_waits_for_buckets_are_repeated */
			continue;
		setup.n_ranks = 2;
		if (is_some_pair(i, 0, 2))
			run_beside_late(&setup, interrupted_main);
		if (is_some_pair(i, 1, 2))
			run_beside_late(&setup, interrupted_for_good_main);
	}
}

/* Its job is removed between steps, and once more after the handover. */
static int removed_main(uint32_t rank, void *data)
{
	const struct setup *setup = data;
	struct weightd_train *t = rank_open(setup, rank);
	double lr[N_GROUPS];
	uint64_t cursor;
	struct weightd_update u;

	for (int i = 0; i < 3; i++)
		assert(rank_step(setup, t) == 0);
	u = rank_arguments(setup, t, lr, &cursor);
	rank_compute(setup, t);
	train_job->removed = true;
	assert(weightd_train_update(t, &u) == -ESTALE);
	assert(strstr(weightd_train_error(), "was removed: rank 0 cannot hand over its gradients of "
					     "step 4"));
	assert(weightd_train_step(t) == 3 && trainer_word(&trainer_words(t)->grad) == 3);
	saved_write(t, &u, 4);
	handover_complete(t, 4);
	wait_publish(&trainer_words(t)->grad, 4);
	assert(weightd_train_update(t, &u) == 0 && weightd_train_step(t) == 4);
	weightd_train_free(t);
	return 0;
}

static void test_removed_job_has_no_further_step(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i += is_long_form() ? 1 : 2) {
		struct setup setup = rows[i];

		setup.n_ranks = 1;
		train_job_start(1);
		assert_int_equal(train_job_join(train_job_fork(removed_main, 0, &setup)), 0);
		train_job_stop();
	}
}

/* Hands over its gradients, and does not update its part before the signal. */
static int slow_main(uint32_t rank, void *data)
{
	const struct setup *setup = data;
	struct weightd_train *t = rank_open(setup, rank);
	double lr[N_GROUPS];
	uint64_t cursor;
	struct weightd_update u = rank_arguments(setup, t, lr, &cursor);

	rank_compute(setup, t);
	saved_write(t, &u, 1);
	handover_complete(t, 1);
	wait_publish(&trainer_words(t)->grad, 1);
	signal_wait(1);
	weightd_train_free(t);
	return rank_main(rank, data);
}

static int names_elements_main(uint32_t rank, void *data)
{
	const struct setup *setup = data;
	struct weightd_train *t;
	struct plan_interval elements;
	double lr[N_GROUPS];
	uint64_t cursor;
	struct weightd_update u;
	char text[64];

	t = rank_open(setup, rank);
	elements = (struct plan_interval){t->plan->cuts[1], t->plan->cuts[2]};
	u = rank_arguments(setup, t, lr, &cursor);
	assert(rank_compute(setup, t) == 0);
	t->place.deadline_ms = 200; /* not that of the overlap, whose thread reads it */
	/* It may not have handed over its gradients yet. */
	do
		assert(weightd_train_update(t, &u) == -ETIMEDOUT);
	while (strstr(weightd_train_error(), "hand over"));
	(void)snprintf(text, sizeof(text), "(elements %llu to %llu) of step 1 within",
		       (unsigned long long)elements.begin, (unsigned long long)elements.end);
	assert(strstr(weightd_train_error(), text));
	wait_publish(signal_word, 1);
	weightd_train_free(t);
	return rank_main(rank, data);
}

static void test_late_update_is_named_with_its_elements(void **state)
{
	(void)state;
	for (size_t i = !is_long_form(); i < ARRAY_LEN(rows); i += is_long_form() ? 1 : 2) {
		struct setup setup = rows[i];

		setup.n_ranks = 2;
		run_both_late(&setup, names_elements_main, slow_main);
	}
}

/* Dies with its gradients of a step handed over, and nothing of the update done. */
static int die_in_step(uint32_t rank, const struct setup *setup, uint64_t step)
{
	struct weightd_train *t = rank_open(setup, rank);
	double lr[N_GROUPS];
	uint64_t cursor;
	struct weightd_update u;

	while (weightd_train_step(t) < step - 1)
		assert(rank_step(setup, t) == 0);
	u = rank_arguments(setup, t, lr, &cursor);
	rank_compute(setup, t);
	saved_write(t, &u, step);
	handover_complete(t, step);
	wait_publish(&trainer_words(t)->grad, step);
	raise(SIGKILL);
	return 1;
}

static int dying_main(uint32_t rank, void *data)
{
	return die_in_step(rank, data, N_STEPS);
}

static void test_survivors_need_no_successor_for_the_last_step(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i += is_long_form() ? 1 : 2) {
		struct setup setup = rows[i];
		struct result ours, plain;
		pid_t pids[3];

		setup.n_ranks = 3;
		setup.on_death = WEIGHTD_DEATH_FINISH;
		train_job_start(3);
		scales_start();
		for (uint32_t rank = 0; rank < 3; rank++)
			pids[rank] = train_job_fork(rank == 1 ? dying_main : rank_main, rank,
						    &setup);
		assert_int_equal(train_job_join(pids[1]), 128 + SIGKILL);
		assert_int_equal(train_job_join(pids[0]), 0);
		assert_int_equal(train_job_join(pids[2]), 0);
		ours = result_read(&setup);
		plain = oracle_run(&setup);
		result_compare(&ours, &plain);
		/* Its successor finds the step done. */
		assert_int_equal(train_job_join(train_job_fork(rank_main, 1, &setup)), 0);
		result_free(&ours);
		result_free(&plain);
		train_job_stop();
	}
}

#define STEP_OF_DEATH 3

static int dying_early_main(uint32_t rank, void *data)
{
	return die_in_step(rank, data, STEP_OF_DEATH);
}

static int dying_first_main(uint32_t rank, void *data)
{
	return die_in_step(rank, data, 1);
}

/* Ends before its first step. */
static int filling_main(uint32_t rank, void *data)
{
	weightd_train_free(rank_open(data, rank));
	return 0;
}

static int outlives_main(uint32_t rank, void *data)
{
	const struct setup *setup = data;
	struct weightd_train *t = rank_open(setup, rank);

	while (weightd_train_step(t) < STEP_OF_DEATH)
		assert(rank_step(setup, t) == 0);
	t->place.deadline_ms = 2000;
	t->overlap.place.deadline_ms = 2000;
	if (rank_step(setup, t) != -ETIMEDOUT || !strstr(weightd_train_error(), "rank 1") ||
	    !strstr(weightd_train_error(), "of step 4"))
		return rank_fail("the next wait", 0);
	return weightd_train_step(t) == STEP_OF_DEATH ? 0 : 1;
}

static void test_survivors_finish_for_the_dead_and_name_it_in_the_next_step(void **state)
{
	static const size_t of_each_kind[] = {0, 3, 4, 7};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(of_each_kind); i++) {
		struct setup setup = rows[of_each_kind[i]];
		pid_t pids[3];

		setup.n_ranks = 3;
		setup.on_death = WEIGHTD_DEATH_FINISH;
		train_job_start(3);
		for (uint32_t rank = 0; rank < 3; rank++)
			pids[rank] = train_job_fork(rank == 1 ? dying_early_main : outlives_main,
						    rank, &setup);
		assert_int_equal(train_job_join(pids[1]), 128 + SIGKILL);
		assert_int_equal(train_job_join(pids[0]), 0);
		assert_int_equal(train_job_join(pids[2]), 0);
		train_job_stop();
	}
}

static int open_again_main(uint32_t rank, void *data)
{
	const struct setup *setup = data;
	struct weightd_train_options options = {
		.size = sizeof(options), .token = TRAIN_JOB_TOKEN, .rank = rank, .deadline_ms = 100};
	struct weightd_plan *plan = plan_make(setup);
	struct weightd_train *t;

	assert(weightd_train_open(NULL, plan, &options, &t) == -ETIMEDOUT);
	assert(strstr(weightd_train_error(),
		      "rank 0 did not hand over its gradients of step 1 within 0.1 s"));
	weightd_plan_free(plan);
	return 0;
}

/* All were killed, and this one had handed over its gradients. */
static void test_open_names_the_rank_that_does_not_come_back(void **state)
{
	struct setup setup = {.strategy = "shared", .n_ranks = 2};
	pid_t other;

	(void)state;
	train_job_start(2);
	other = train_job_fork(filling_main, 0, &setup);
	assert_int_equal(train_job_join(train_job_fork(dying_first_main, 1, &setup)), 128 + SIGKILL);
	assert_int_equal(train_job_join(other), 0);
	assert_int_equal(train_job_join(train_job_fork(open_again_main, 1, &setup)), 0);
	train_job_stop();
}

static int sees_death_main(uint32_t rank, void *data)
{
	const struct setup *setup = data;
	struct weightd_train *t = rank_open(setup, rank);
	int r = 0;

	while (r == 0 && weightd_train_step(t) < N_STEPS)
		r = rank_step(setup, t);
	return r == -EOWNERDEAD && weightd_train_step(t) == N_STEPS - 1 &&
			       strstr(weightd_train_error(), "rank 1")
		       ? 0
		       : rank_fail("no death was seen", r);
}

static void test_death_is_an_error_where_the_options_ask_for_one(void **state)
{
	(void)state;
	for (size_t i = !is_long_form(); i < ARRAY_LEN(rows); i += is_long_form() ? 1 : 2) {
		struct setup setup = rows[i];
		pid_t pids[2];

		setup.n_ranks = 2;
		setup.on_death = WEIGHTD_DEATH_FAIL;
		train_job_start(2);
		pids[0] = train_job_fork(sees_death_main, 0, &setup);
		pids[1] = train_job_fork(dying_main, 1, &setup);
		assert_int_equal(train_job_join(pids[1]), 128 + SIGKILL);
		assert_int_equal(train_job_join(pids[0]), 0);
		train_job_stop();
	}
}

/* --- Buckets ------------------------------------------------------------------------------------------------ */

static int half_ready_main(uint32_t rank, void *data)
{
	const struct setup *setup = data;
	struct weightd_train *t = rank_open(setup, rank);
	float *grad = weightd_train_grad(t, N_TENSORS - 1);

	assert(weightd_train_wants(t, N_TENSORS - 1) && weightd_train_wants(t, 0));
	for (uint64_t k = 0; k < shape_deep[0] * shape_deep[1]; k++)
		grad[k] = value_grad(((const float *)weightd_train_param(t, N_TENSORS - 1))[k],
				     rank, 1,
				     weightd_train_plan(t)->tensors[N_TENSORS - 1].offset / 4 + k);
	assert(weightd_train_ready(t, N_TENSORS - 1) == 0);
	raise(SIGKILL);
	return 1;
}

static int half_wanted_main(uint32_t rank, void *data)
{
	const struct setup *setup = data;
	struct weightd_train *t = rank_open(setup, rank);

	assert(!weightd_train_wants(t, N_TENSORS - 1) && weightd_train_wants(t, 0));
	weightd_train_free(t);
	return rank_main(rank, data);
}

static void test_bucket_is_handed_over_once(void **state)
{
	struct setup setup = {.strategy = "shared",
			      .n_ranks = 2,
			      .form = WEIGHTD_STEP_TWO_PHASE,
			      .says_ready = true,
			      .overlap = true};
	struct result ours, plain = oracle_run(&setup);
	pid_t pids[2];

	(void)state;
	train_job_start(2);
	scales_start();
	pids[0] = train_job_fork(rank_main, 0, &setup);
	assert_int_equal(train_job_join(train_job_fork(half_ready_main, 1, &setup)), 128 + SIGKILL);
	pids[1] = train_job_fork(half_wanted_main, 1, &setup);
	assert_int_equal(train_job_join(pids[0]), 0);
	assert_int_equal(train_job_join(pids[1]), 0);
	ours = result_read(&setup);
	result_compare(&ours, &plain);
	result_free(&ours);
	result_free(&plain);
	train_job_stop();
}

/* --- Norms --------------------------------------------------------------------------------------------------- */

static int skipped_norm_main(uint32_t rank, void *data)
{
	const struct setup *setup = data;
	struct weightd_train *t = rank_open(setup, rank);

	assert(isnan(weightd_train_norm(t)));
	assert(rank_step(setup, t) == 0 && weightd_train_norm(t) > 0);
	assert(rank_step(setup, t) == -EDOM && isnan(weightd_train_norm(t)));
	assert(rank_step(setup, t) == 0 && weightd_train_norm(t) > 0);
	weightd_train_free(t);
	return rank_main(rank, data);
}

static void test_skipped_step_has_no_norm(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct setup setup = rows[i];

		if (setup.form == WEIGHTD_STEP_FUSED)
			continue;
		setup.n_ranks = 2;
		setup.nan_step = 2;
		run_beside(&setup, skipped_norm_main);
	}
}

/* The step that clips is the step with gradients of that norm: SGD shows it. */
static int norm_main(uint32_t rank, void *data)
{
	const struct setup *setup = data;
	struct weightd_train *t = rank_open(setup, rank);
	uint64_t n = t->plan->n_elements;
	double squares = 0, moved = 0;
	float *before = malloc(n * sizeof(float));
	const float *param = t->arena.param;

	memcpy(before, t->arena.param, n * sizeof(float));
	assert(rank_step(setup, t) == 0);
	for (uint64_t i = 0; i < n; i++) {
		/* Padding is 0, and has no gradient. */
		float mean = before[i] == 0 ? 0
					    : (value_grad(before[i], 0, 1, i) +
					       value_grad(before[i], 1, 1, i)) *
						      0.5f;
		bool is_bias = i >= 912 && i < 960; /* of group 1, whose weight decays */
		double move = ((double)before[i] - param[i]) / rate(1, is_bias) -
			      0.1 * is_bias * (double)before[i];

		squares += (double)mean * mean;
		moved += move * move;
	}
	free(before);
	assert(fabs(weightd_train_norm(t) / sqrt(squares) - 1) < 1e-9);
	assert(weightd_train_norm(t) > 1);
	assert(fabs(sqrt(moved) - setup->max_norm) < 1e-3 * setup->max_norm);
	weightd_train_free(t);
	return rank_main(rank, data);
}

static void test_max_norm_clips_the_norm_of_all_shards(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		struct setup setup = rows[i];

		if (setup.form == WEIGHTD_STEP_FUSED)
			continue;
		setup.n_ranks = 2;
		setup.optimizer = WEIGHTD_SGD;
		setup.max_norm = 0.5;
		run_beside(&setup, norm_main);
	}
}

int main(void)
{
	const struct CMUnitTest all[] = {
		cmocka_unit_test(test_every_strategy_is_the_plain_loop),
		cmocka_unit_test(test_unequal_weights_are_the_weighted_mean),
		cmocka_unit_test(test_nan_of_one_rank_skips_the_step_on_all),
		cmocka_unit_test(test_16_bits_and_scaling_are_those_of_a_plain_loop),
		cmocka_unit_test(test_some_steps_of_an_unfit_scale_overflow),
		cmocka_unit_test(test_traffic_is_what_the_plan_predicts),
		cmocka_unit_test(test_bad_arguments_change_nothing),
		cmocka_unit_test(test_each_rank_fills_its_buffers_until_its_first_step),
		cmocka_unit_test(test_forked_child_is_no_rank),
		cmocka_unit_test(test_failed_update_is_repeated),
		cmocka_unit_test(test_waits_for_buckets_are_repeated),
		cmocka_unit_test(test_interrupted_update_is_repeated),
		cmocka_unit_test(test_removed_job_has_no_further_step),
		cmocka_unit_test(test_late_update_is_named_with_its_elements),
		cmocka_unit_test(test_survivors_need_no_successor_for_the_last_step),
		cmocka_unit_test(test_survivors_finish_for_the_dead_and_name_it_in_the_next_step),
		cmocka_unit_test(test_open_names_the_rank_that_does_not_come_back),
		cmocka_unit_test(test_death_is_an_error_where_the_options_ask_for_one),
		cmocka_unit_test(test_bucket_is_handed_over_once),
		cmocka_unit_test(test_skipped_step_has_no_norm),
		cmocka_unit_test(test_max_norm_clips_the_norm_of_all_shards),
	};

	return cmocka_run_group_tests(all, NULL, NULL);
}

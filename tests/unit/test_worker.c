/*
 * The worker: jobs take turns, end on the loop's thread, and none is forgotten. A gate at the front of
 * the queue holds the worker until a test has submitted all that it wants to see in order.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ipc/base/num.h"
#include "server/base/threads/worker.h"

#define MS 1000000u

static struct loop loop;
static struct worker worker;
static unsigned n_expected; /* done callbacks until the loop ends */

static int set_up(void **state)
{
	(void)state;
	n_expected = 0;
	if (loop_init(&loop) < 0)
		return -1;
	return worker_init(&worker, &loop);
}

static int tear_down(void **state)
{
	(void)state;
	worker_deinit(&worker);
	loop_deinit(&loop);
	return 0;
}

/* A job with a number of steps, which records its events. */
struct task {
	struct job job;
	char letter;
	unsigned n_steps; /* to do */
	int result;
	unsigned n_done; /* calls of done */
	int got;
	pthread_t step_thread, done_thread;
	unsigned delay_ms; /* delay in later_step() */
	uint64_t not_before_ns;
	void (*act)(struct task *t); /* in done */
	struct task *other;
};

static char steps[4096]; /* letters, in order; the worker's until all jobs are done */
static char ends[1024]; /* the loop's */

static int task_step(struct job *job)
{
	struct task *t = container_of(job, struct task, job);

	t->step_thread = pthread_self();
	steps[strlen(steps)] = t->letter;
	if (job->cancelled)
		return -ECANCELED;
	return --t->n_steps > 0 ? JOB_AGAIN : t->result;
}

static void task_done(struct job *job, int r)
{
	struct task *t = container_of(job, struct task, job);

	t->done_thread = pthread_self();
	t->got = r;
	t->n_done++;
	ends[strlen(ends)] = t->letter;
	if (t->act)
		t->act(t);
	if (n_expected > 0 && --n_expected == 0)
		loop_quit(&loop);
}

static void submit(struct task *t, char letter, unsigned n_steps, int result)
{
	t->letter = letter;
	t->n_steps = n_steps;
	t->result = result;
	worker_submit(&worker, &t->job, WORKER_NOBODY, task_step, task_done);
}

static void run_until(unsigned n_done)
{
	n_expected = n_done;
	loop.quit = false;
	assert_int_equal(loop_run(&loop), 0);
}

struct gate {
	struct task task;
	sem_t entered, open;
};

static struct gate gate;

static int gate_step(struct job *job)
{
	(void)job;
	(void)sem_post(&gate.entered);
	while (sem_wait(&gate.open) < 0)
		continue;
	return JOB_DONE;
}

/* Afterwards the worker stands in the gate's step and the queue is empty. */
static void close_gate(void)
{
	gate = (struct gate){.task.letter = '|'};
	assert_int_equal(sem_init(&gate.entered, 0, 0), 0);
	assert_int_equal(sem_init(&gate.open, 0, 0), 0);
	worker_submit(&worker, &gate.task.job, WORKER_NOBODY, gate_step, task_done);
	while (sem_wait(&gate.entered) < 0)
		continue;
	memset(steps, 0, sizeof(steps));
	memset(ends, 0, sizeof(ends));
}

static void open_gate(void)
{
	assert_int_equal(sem_post(&gate.open), 0);
}

static void a_job_steps_on_the_worker_and_ends_on_the_loop(void **state)
{
	struct task t = {0};

	(void)state;
	submit(&t, 'a', 3, JOB_DONE);
	run_until(1);
	assert_int_equal(t.n_steps, 0);
	assert_int_equal(t.n_done, 1);
	assert_int_equal(t.got, 0);
	assert_true(pthread_equal(t.done_thread, pthread_self()));
	assert_false(pthread_equal(t.step_thread, pthread_self()));
}

static void an_error_ends_a_job_and_is_told(void **state)
{
	struct task t = {0};

	(void)state;
	submit(&t, 'a', 2, -ENOSPC);
	run_until(1);
	assert_int_equal(t.got, -ENOSPC);
	assert_int_equal(t.n_done, 1);
}

static void jobs_take_turns_and_a_short_one_overtakes_a_long_one(void **state)
{
	struct task a = {0}, b = {0}, c = {0};

	(void)state;
	close_gate();
	submit(&a, 'a', 6, JOB_DONE);
	submit(&b, 'b', 2, JOB_DONE);
	submit(&c, 'c', 1, JOB_DONE);
	open_gate();
	run_until(4);
	assert_string_equal(steps, "abcabaaaa");
	assert_string_equal(ends, "|cba");
}

/* Stops in its fourth step. */
static int halting_step(struct job *job)
{
	struct task *t = container_of(job, struct task, job);

	steps[strlen(steps)] = t->letter;
	if (t->n_steps == 1000) {
		(void)sem_post(&gate.entered);
		while (sem_wait(&gate.open) < 0)
			continue;
	}
	return --t->n_steps > 0 ? JOB_AGAIN : JOB_DONE;
}

static void a_job_that_comes_late_waits_for_one_step_at_most(void **state)
{
	struct task t = {.letter = 'a', .n_steps = 1003}, late = {0};

	(void)state;
	close_gate();
	open_gate();
	worker_submit(&worker, &t.job, WORKER_NOBODY, halting_step, task_done);
	while (sem_wait(&gate.entered) < 0)
		continue;
	submit(&late, 'b', 1, JOB_DONE);
	open_gate();
	run_until(3);
	assert_int_equal(strlen(steps), 1004);
	assert_int_equal(strchr(steps, 'b') - steps, 4);
	assert_string_equal(ends, "|ba");
}

static int later_step(struct job *job)
{
	struct task *t = container_of(job, struct task, job);

	steps[strlen(steps)] = t->letter;
	if (t->n_steps-- > 1) {
		t->not_before_ns = job->not_before_ns = num_now_ns() + t->delay_ms * MS;
		return JOB_LATER;
	}
	return num_now_ns() >= t->not_before_ns ? t->result : -ETIME;
}

static void submit_later(struct task *t, char letter, unsigned n_steps, unsigned delay_ms)
{
	*t = (struct task){.letter = letter, .n_steps = n_steps, .delay_ms = delay_ms};
	worker_submit(&worker, &t->job, WORKER_NOBODY, later_step, task_done);
}

static void a_job_for_later_steps_not_before_its_time(void **state)
{
	struct task t;
	uint64_t start = num_now_ns();

	(void)state;
	submit_later(&t, 'a', 3, 20);
	run_until(1);
	assert_int_equal(t.got, 0);
	assert_in_range(num_now_ns() - start, 40 * MS, UINT64_MAX);
}

/* Waits for a time that does not come, however late this process is, until it is cancelled. */
static int never_step(struct job *job)
{
	struct task *t = container_of(job, struct task, job);

	steps[strlen(steps)] = t->letter;
	if (job->cancelled)
		return -ECANCELED;
	job->not_before_ns = UINT64_MAX;
	return JOB_LATER;
}

static void submit_never(struct task *t, char letter)
{
	*t = (struct task){.letter = letter};
	worker_submit(&worker, &t->job, WORKER_NOBODY, never_step, task_done);
}

static void cancel(struct task *t)
{
	struct task wakes_the_worker = {0};

	t->job.cancelled = true;
	submit(&wakes_the_worker, '|', 1, JOB_DONE);
	run_until(2);
	assert_int_equal(t->got, -ECANCELED);
}

static void a_job_for_later_holds_up_nobody(void **state)
{
	struct task a, b = {0};

	(void)state;
	close_gate();
	submit_never(&a, 'a');
	submit(&b, 'b', 5, JOB_DONE);
	open_gate();
	run_until(2);
	assert_string_equal(steps, "abbbbb");
	assert_string_equal(ends, "|b");
	cancel(&a);
}

static void a_worker_that_waits_for_a_time_takes_a_new_job_before_it(void **state)
{
	struct task a, b = {0};

	(void)state;
	submit_never(&a, 'a');
	close_gate(); /* that it closes is half of the test */
	open_gate();
	submit(&b, 'b', 1, JOB_DONE);
	run_until(2);
	assert_string_equal(ends, "|b");
	cancel(&a);
}

static void the_earliest_of_several_times_is_waited_for_first(void **state)
{
	struct task a, b;

	(void)state;
	close_gate();
	submit_never(&a, 'a');
	submit_later(&b, 'b', 2, 20);
	open_gate();
	run_until(2);
	assert_string_equal(ends, "|b");
	cancel(&a);
}

static uint64_t cpu_ns(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void waiting_for_a_time_takes_no_time_of_the_processor(void **state)
{
	uint64_t before = cpu_ns();
	struct task t;

	(void)state;
	submit_later(&t, 'a', 2, 200);
	run_until(1);
	assert_in_range(cpu_ns() - before, 0, 100 * MS);
}

static void a_submitted_job_may_start_at_once(void **state)
{
	struct task t = {0};

	(void)state;
	t.job.not_before_ns = UINT64_MAX; /* left from an earlier use */
	submit(&t, 'a', 1, JOB_DONE);
	run_until(1);
	assert_int_equal(t.n_done, 1);
}

static void jobs_for_later_end_in_the_order_of_their_times(void **state)
{
	struct task tasks[3];

	(void)state;
	close_gate();
	for (unsigned i = 0; i < 3; i++)
		submit_later(&tasks[i], (char)('a' + i), 4 - i, 20);
	open_gate();
	run_until(4);
	assert_string_equal(ends, "|cba");
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(tasks[i].got, 0);
}

static int again_after_later_step(struct job *job)
{
	struct task *t = container_of(job, struct task, job);

	switch (t->n_steps--) {
	case 3:
		job->not_before_ns = num_now_ns() + 10 * MS;
		return JOB_LATER;
	case 2:
		job->not_before_ns = UINT64_MAX; /* means nothing without JOB_LATER */
		return JOB_AGAIN;
	default:
		return JOB_DONE;
	}
}

static void a_time_counts_for_one_turn(void **state)
{
	struct task t = {.letter = 'a', .n_steps = 3};

	(void)state;
	worker_submit(&worker, &t.job, WORKER_NOBODY, again_after_later_step, task_done);
	run_until(1);
	assert_int_equal(t.got, 0);
}

static void a_cancelled_job_sees_it_and_still_ends_on_the_loop(void **state)
{
	struct task t = {0};

	(void)state;
	close_gate();
	submit(&t, 'a', 1000000, JOB_DONE);
	t.job.cancelled = true;
	open_gate();
	run_until(2);
	assert_int_equal(t.got, -ECANCELED);
	assert_int_equal(t.n_done, 1);
	assert_string_equal(steps, "a");
}

static void a_job_submitted_again_is_no_longer_cancelled(void **state)
{
	struct task t = {0};

	(void)state;
	submit(&t, 'a', 1, JOB_DONE);
	t.job.cancelled = true;
	run_until(1);
	submit(&t, 'a', 1, JOB_DONE);
	run_until(1);
	assert_int_equal(t.got, JOB_DONE);
	assert_int_equal(t.n_done, 2);
}

static void free_done(struct job *job, int r)
{
	struct task *t = container_of(job, struct task, job);

	task_done(job, r);
	free(t);
}

static void done_may_free_the_job(void **state)
{
	const unsigned n = 200;

	(void)state;
	close_gate();
	for (unsigned i = 0; i < n; i++) {
		struct task *t = calloc(1, sizeof(*t));

		assert_non_null(t);
		t->letter = 'a';
		t->n_steps = 1 + i % 3;
		worker_submit(&worker, &t->job, WORKER_NOBODY, task_step, free_done);
	}
	open_gate();
	run_until(n + 1);
	assert_int_equal(strlen(ends), n + 1);
}

static sigset_t worker_mask;

static int mask_step(struct job *job)
{
	(void)job;
	return -pthread_sigmask(SIG_SETMASK, NULL, &worker_mask);
}

static void the_thread_leaves_signals_to_the_loop(void **state)
{
	static const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGCHLD, SIGUSR1, SIGPIPE, SIGALRM};
	struct task t = {0};
	sigset_t mask;

	(void)state;
	worker_submit(&worker, &t.job, WORKER_NOBODY, mask_step, task_done);
	run_until(1);
	assert_int_equal(t.got, 0);
	assert_int_equal(pthread_sigmask(SIG_SETMASK, NULL, &mask), 0);
	for (size_t i = 0; i < ARRAY_LEN(signals); i++) {
		assert_int_equal(sigismember(&worker_mask, signals[i]), 1);
		assert_int_equal(sigismember(&mask, signals[i]), 0);
	}
}

static void without_jobs_it_comes_and_goes(void **state)
{
	(void)state;
	for (int i = 0; i < 20; i++) {
		worker_deinit(&worker);
		assert_int_equal(worker_init(&worker, &loop), 0);
	}
}

static void submit_other(struct task *t)
{
	if (t->other)
		submit(t->other, 'b', 2, JOB_DONE);
}

static void deinit_runs_what_is_queued_to_its_end(void **state)
{
	struct task tasks[4] = {0};
	struct task waiting;

	(void)state;
	close_gate();
	for (unsigned i = 0; i < 4; i++)
		submit(&tasks[i], (char)('a' + i), 1 + i, -(int)i);
	submit_later(&waiting, 'w', 5, 1); /* has more turns than any other, so that it is the last */
	open_gate();
	worker_deinit(&worker);
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(tasks[i].n_done, 1);
		assert_int_equal(tasks[i].got, -(int)i);
		assert_true(pthread_equal(tasks[i].done_thread, pthread_self()));
	}
	assert_int_equal(waiting.n_done, 1);
	assert_string_equal(ends, "|abcdw");
	assert_int_equal(worker_init(&worker, &loop), 0);
}

static void deinit_waits_for_no_time_of_a_cancelled_job(void **state)
{
	struct task t;

	(void)state;
	submit_never(&t, 'a');
	t.job.cancelled = true;
	worker_deinit(&worker);
	assert_int_equal(t.got, -ECANCELED);
	assert_int_equal(worker_init(&worker, &loop), 0); /* tear_down() needs a worker */
}

static void deinit_runs_what_a_done_submits(void **state)
{
	struct task first = {0}, second = {0}, third = {0};

	(void)state;
	close_gate();
	first.act = second.act = submit_other;
	first.other = &second;
	second.other = &third;
	submit(&first, 'a', 2, JOB_DONE);
	open_gate();
	worker_deinit(&worker);
	assert_int_equal(first.n_done, 1);
	assert_int_equal(second.n_done, 1);
	assert_int_equal(third.n_done, 1);
	assert_int_equal(worker_init(&worker, &loop), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_job_steps_on_the_worker_and_ends_on_the_loop),
		TEST(an_error_ends_a_job_and_is_told),
		TEST(jobs_take_turns_and_a_short_one_overtakes_a_long_one),
		TEST(a_job_that_comes_late_waits_for_one_step_at_most),
		TEST(a_job_for_later_steps_not_before_its_time),
		TEST(a_job_for_later_holds_up_nobody),
		TEST(a_worker_that_waits_for_a_time_takes_a_new_job_before_it),
		TEST(the_earliest_of_several_times_is_waited_for_first),
		TEST(waiting_for_a_time_takes_no_time_of_the_processor),
		TEST(a_submitted_job_may_start_at_once),
		TEST(jobs_for_later_end_in_the_order_of_their_times),
		TEST(a_time_counts_for_one_turn),
		TEST(a_cancelled_job_sees_it_and_still_ends_on_the_loop),
		TEST(a_job_submitted_again_is_no_longer_cancelled),
		TEST(done_may_free_the_job),
		TEST(the_thread_leaves_signals_to_the_loop),
		TEST(without_jobs_it_comes_and_goes),
		TEST(deinit_runs_what_is_queued_to_its_end),
		TEST(deinit_waits_for_no_time_of_a_cancelled_job),
		TEST(deinit_runs_what_a_done_submits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * The worker between users: they take turns whatever they submit, none of several threads works for
 * a user that has one already, and the time is charged.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <semaphore.h>
#include <string.h>

#include "ipc/base/list.h"
#include "ipc/base/num.h"
#include "server/base/threads/worker.h"

#define N_CROWD 100
#define MS 1000000u

static struct loop loop;
static struct worker worker;
static unsigned n_expected; /* done callbacks until the loop ends */

struct task {
	struct job job;
	char letter;
	unsigned n_steps; /* to do */
	sem_t entered, open; /* of a gate */
};

static char steps[8192]; /* letters, in order */
static unsigned n_steps;
static pthread_mutex_t steps_lock = PTHREAD_MUTEX_INITIALIZER; /* of steps, n_steps */

static void set_up_with(unsigned n_threads)
{
	assert_int_equal(loop_init(&loop), 0);
	assert_int_equal(worker_init_threads(&worker, &loop, n_threads), 0);
	memset(steps, 0, sizeof(steps));
	n_steps = 0;
}

static int tear_down(void **state)
{
	(void)state;
	worker_deinit(&worker);
	loop_deinit(&loop);
	return 0;
}

static void note(char letter)
{
	pthread_mutex_lock(&steps_lock);
	steps[n_steps++] = letter;
	pthread_mutex_unlock(&steps_lock);
}

static int task_step(struct job *job)
{
	struct task *t = container_of(job, struct task, job);

	note(t->letter);
	return --t->n_steps > 0 ? JOB_AGAIN : JOB_DONE;
}

static void task_done(struct job *job, int r)
{
	(void)job;
	assert_int_equal(r, 0);
	if (n_expected > 0 && --n_expected == 0)
		loop_quit(&loop);
}

static void submit(struct task *t, uid_t uid, char letter, unsigned n)
{
	*t = (struct task){.letter = letter, .n_steps = n};
	worker_submit(&worker, &t->job, uid, task_step, task_done);
}

static void run_until(unsigned n_done)
{
	n_expected = n_done;
	loop.quit = false;
	assert_int_equal(loop_run(&loop), 0);
}

static int gate_step(struct job *job)
{
	struct task *t = container_of(job, struct task, job);

	note(t->letter);
	(void)sem_post(&t->entered);
	while (sem_wait(&t->open) < 0)
		continue;
	return JOB_DONE;
}

static void submit_gate(struct task *t, uid_t uid, char letter)
{
	*t = (struct task){.letter = letter};
	assert_int_equal(sem_init(&t->entered, 0, 0), 0);
	assert_int_equal(sem_init(&t->open, 0, 0), 0);
	worker_submit(&worker, &t->job, uid, gate_step, task_done);
}

static void await_gate(struct task *t)
{
	while (sem_wait(&t->entered) < 0)
		continue;
}

static void open_gate(struct task *t)
{
	assert_int_equal(sem_post(&t->open), 0);
}

/* Afterwards the one thread stands in the gate's step. */
static void close_gate(struct task *t)
{
	submit_gate(t, WORKER_NOBODY, '|');
	await_gate(t);
}

static void a_crowd_of_one_user_delays_another_by_a_step_for_each_of_its_own(void **state)
{
	static struct task gate, crowd[N_CROWD], one;

	(void)state;
	set_up_with(1);
	close_gate(&gate);
	for (unsigned i = 0; i < N_CROWD; i++)
		submit(&crowd[i], 1, 'c', 10);
	submit(&one, 2, 'o', 4);
	open_gate(&gate);
	run_until(N_CROWD + 2);
	assert_memory_equal(steps, "|cococococcc", 12);
	assert_int_equal(n_steps, 1 + N_CROWD * 10 + 4);
}

static void a_user_that_comes_during_a_step_is_served_next(void **state)
{
	static struct task gate, crowd[2], one;

	(void)state;
	set_up_with(1);
	submit_gate(&gate, 1, '|');
	await_gate(&gate);
	for (unsigned i = 0; i < 2; i++)
		submit(&crowd[i], 1, 'c', 2);
	submit(&one, 2, 'o', 1);
	open_gate(&gate);
	run_until(4);
	assert_string_equal(steps, "|occcc");
}

static void a_user_that_comes_again_and_again_is_served_once_a_turn(void **state)
{
	static struct task gate, again, other, third;

	(void)state;
	set_up_with(1);
	close_gate(&gate);
	submit(&again, 1, 'a', 3);
	submit(&other, 2, 'b', 3);
	submit(&third, 3, 'c', 3);
	open_gate(&gate);
	run_until(4);
	assert_string_equal(steps, "|abcabcabc");
}

static void jobs_of_one_user_take_turns(void **state)
{
	static struct task gate, big, small, other;

	(void)state;
	set_up_with(1);
	close_gate(&gate);
	submit(&big, 1, 'B', 4);
	submit(&small, 1, 's', 2);
	submit(&other, 2, 'o', 6);
	open_gate(&gate);
	run_until(4);
	assert_string_equal(steps, "|BosoBosoBoBo");
}

static int later_step(struct job *job)
{
	struct task *t = container_of(job, struct task, job);

	note(t->letter);
	if (--t->n_steps == 0)
		return JOB_DONE;
	job->not_before_ns = num_now_ns() + MS;
	return JOB_LATER;
}

/* The user's turn stays while its only job waits for a time. */
static void a_job_for_later_is_still_its_users(void **state)
{
	static struct task later, other;

	(void)state;
	set_up_with(1);
	later = (struct task){.letter = 'l', .n_steps = 5};
	worker_submit(&worker, &later.job, 1, later_step, task_done);
	submit(&other, 2, 'o', 1);
	run_until(2);
	submit(&other, 1, 'o', 1);
	run_until(1);
	assert_int_equal(n_steps, 7);
}

static void a_user_whose_step_blocks_leaves_the_other_threads_to_others(void **state)
{
	static struct task stuck, behind[N_CROWD], other;

	(void)state;
	set_up_with(2);
	submit_gate(&stuck, 1, '|');
	await_gate(&stuck);
	for (unsigned i = 0; i < N_CROWD; i++)
		submit(&behind[i], 1, 'c', 1);
	submit(&other, 2, 'o', 3);
	run_until(1); /* while the first user's step blocks */
	assert_string_equal(steps, "|ooo");
	open_gate(&stuck);
	run_until(N_CROWD + 1);
	assert_int_equal(n_steps, N_CROWD + 4);
}

static void threads_work_for_several_users_at_once(void **state)
{
	static struct task gates[WORKER_THREADS_MAX];

	(void)state;
	set_up_with(WORKER_THREADS_MAX);
	for (unsigned i = 0; i < WORKER_THREADS_MAX; i++)
		submit_gate(&gates[i], 1 + i, '|');
	for (unsigned i = 0; i < WORKER_THREADS_MAX; i++)
		await_gate(&gates[i]);
	for (unsigned i = 0; i < WORKER_THREADS_MAX; i++)
		open_gate(&gates[i]);
	run_until(WORKER_THREADS_MAX);
}

/* A thread that takes a job leaves the wait for the time of another job to another thread. */
static void a_time_passes_while_a_thread_is_busy(void **state)
{
	static struct task later, stuck;

	(void)state;
	set_up_with(2);
	later = (struct task){.letter = 'l', .n_steps = 20};
	worker_submit(&worker, &later.job, 1, later_step, task_done);
	submit_gate(&stuck, 2, '|');
	await_gate(&stuck);
	run_until(1);
	open_gate(&stuck);
	run_until(1);
	assert_int_equal(n_steps, 21);
}

struct bill {
	uint64_t ns[4]; /* by uid */
	unsigned n;
};

static void bill_charge(void *arg, uid_t uid, uint64_t ns)
{
	struct bill *bill = arg;

	assert_in_range(uid, 1, 3);
	bill->ns[uid] += ns;
	bill->n++;
}

static int busy_step(struct job *job)
{
	uint64_t end_ns = num_now_ns() + MS;

	while (num_now_ns() < end_ns)
		continue;
	return task_step(job);
}

static void the_time_of_steps_is_charged_to_the_user(void **state)
{
	static struct task own, busy, idle;
	struct bill bill = {0};

	(void)state;
	set_up_with(1);
	worker_charge(&worker, bill_charge, &bill);
	busy = (struct task){.letter = 'b', .n_steps = 10};
	worker_submit(&worker, &busy.job, 1, busy_step, task_done);
	submit(&idle, 2, 'i', 1);
	submit(&own, WORKER_NOBODY, 'o', 1);
	run_until(3);
	assert_int_equal(bill.n, 2);
	assert_in_range(bill.ns[1], 10 * MS, UINT64_MAX);
	assert_in_range(bill.ns[2], 1, UINT64_MAX);
}

#define TEST(name) cmocka_unit_test_teardown(name, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_crowd_of_one_user_delays_another_by_a_step_for_each_of_its_own),
		TEST(a_user_that_comes_during_a_step_is_served_next),
		TEST(a_user_that_comes_again_and_again_is_served_once_a_turn),
		TEST(jobs_of_one_user_take_turns),
		TEST(a_job_for_later_is_still_its_users),
		TEST(a_user_whose_step_blocks_leaves_the_other_threads_to_others),
		TEST(threads_work_for_several_users_at_once),
		TEST(a_time_passes_while_a_thread_is_busy),
		TEST(the_time_of_steps_is_charged_to_the_user),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

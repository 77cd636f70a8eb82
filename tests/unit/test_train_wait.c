/*
 * Waits of the training library, between processes: wakes, deaths, deadlines. Bounds of times are generous, for
 * machines that are busy.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>

#include "ipc/base/num.h"
#include "libclient/train/engine/cpus.h"
#include "libclient/train/engine/wait.h"
#include "tests/unit/train_job.h"

#define MS ((uint64_t)1000000)
#define NOTICED_MS 100 /* of a death */
#define BUSY_MS 1900 /* more, on a busy machine */
#define LONG_MS 60000

/* Memory that the processes of a test share. */
struct scene {
	struct control_word word, back;
	uint64_t data; /* published by `word` */
	_Atomic uint64_t died_ns, woke_ns;
	_Atomic int pid;
	enum weightd_on_death on_death;
	int deadline_ms;
	int result;
	char sentence[1024];
};

static struct scene *scene;

static int setup(void **state)
{
	(void)state;
	scene = mmap(NULL, sizeof(*scene), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		     0);
	assert_true(scene != MAP_FAILED);
	scene->deadline_ms = LONG_MS;
	train_job_start(3);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	(void)munmap(scene, sizeof(*scene));
	train_job_stop();
	return 0;
}

static struct weightd_job *join_rank(uint32_t rank)
{
	struct weightd_part part = {.size = sizeof(part), .kind = "WORDS", .n_bytes = 4096};
	struct weightd_join_options options = {.size = sizeof(options),
					       .rank = rank,
					       .n_parts = 1,
					       .parts = &part,
					       .description = "words",
					       .description_size = 5};
	struct weightd_job *job;

	if (weightd_job_join(NULL, TRAIN_JOB_TOKEN, &options, &job) < 0)
		abort();
	return job;
}

static void place_init(struct wait_place *p, struct weightd_job *job)
{
	struct weightd_train_options options = {.size = sizeof(options),
						.deadline_ms = scene->deadline_ms,
						.on_death = scene->on_death};

	wait_place_init(p, job, 0, 3, &options);
	p->spins = false;
}

static const struct wait_reason reason = {.rank = 1, .step = 17, .what = "hand over its gradients"};

/* Rank 0 waits for 1 in the word, and keeps result and sentence. */
static int wait_as_rank_0(uint32_t rank, void *data)
{
	struct weightd_job *job = join_rank(rank);
	const struct wait_reason *why = data ? data : &reason;
	struct wait_place p;

	place_init(&p, job);
	wait_publish(&scene->back, 1);
	scene->result = wait_for(&p, &scene->word, 1, why);
	scene->woke_ns = num_now_ns();
	strncpy(scene->sentence, weightd_train_error(), sizeof(scene->sentence) - 1);
	weightd_job_free(job);
	return 0;
}

/* Joins, shows its pid, and stays until a signal. */
static int stay_joined(uint32_t rank, void *data)
{
	struct weightd_job *job = join_rank(rank);

	(void)data;
	scene->pid = getpid();
	for (;;)
		(void)pause();
	weightd_job_free(job);
	return 1;
}

static void await_true(bool (*is_true)(void))
{
	uint64_t deadline = num_now_ns() + 30000 * MS;

	while (!is_true()) {
		assert_true(num_now_ns() < deadline);
		(void)sched_yield();
	}
}

/* The time itself is what is waited for. */
static void let_time_pass(int ms)
{
	uint64_t until = num_now_ns() + (uint64_t)ms * MS;

	while (num_now_ns() < until)
		(void)poll(NULL, 0, ms);
}

static bool has_joined(void)
{
	return scene->pid != 0;
}

static bool has_waiter(void)
{
	return atomic_load(&scene->word.n_waiters) != 0;
}

/* A short wait may be over before the test sees it. */
static bool has_waited(void)
{
	return has_waiter() || scene->woke_ns != 0;
}

static pid_t start_rank(uint32_t rank)
{
	pid_t pid;

	scene->pid = 0;
	pid = train_job_fork(stay_joined, rank, NULL);
	await_true(has_joined);
	return pid;
}

static pid_t start_waiter(const struct wait_reason *why)
{
	pid_t pid = train_job_fork(wait_as_rank_0, 0, (void *)(uintptr_t)why);

	await_true(has_waited);
	return pid;
}

/* The clock is read before the kill: the bound holds for more than the truth. */
static void kill_rank(pid_t pid)
{
	scene->died_ns = num_now_ns();
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(train_job_join(pid), 128 + SIGKILL);
}

static void assert_contains(const char *text, const char *part)
{
	if (!strstr(text, part))
		fail_msg("'%s' is not in '%s'", part, text);
}

/* --- Values ------------------------------------------------------------------------------------- */

#define N_ROUNDS 4000

/* Echoes each value of `word` in `back`. */
static int echo_values(uint32_t rank, void *data)
{
	struct wait_reason why = {.rank = 0, .what = "publish"};
	struct wait_place p;

	wait_place_init(&p, NULL, rank, 2, NULL);
	p.spins = data != NULL;
	for (uint64_t i = 1; i <= N_ROUNDS; i++) {
		if (wait_for(&p, &scene->word, i, &why) != 0 || scene->data != 3 * i)
			return 1;
		wait_publish(&scene->back, i);
	}
	return 0;
}

/* A lost wake would cost a tick each time. */
static void no_wake_is_lost(bool spins)
{
	pid_t pid = train_job_fork(echo_values, 1, spins ? scene : NULL);
	struct wait_place p;
	uint64_t begin = num_now_ns(), slow = 0;

	wait_place_init(&p, NULL, 0, 2, NULL);
	p.spins = spins;
	for (uint64_t i = 1; i <= N_ROUNDS; i++) {
		uint64_t before = num_now_ns();

		scene->data = 3 * i;
		wait_publish(&scene->word, i);
		assert_int_equal(wait_for(&p, &scene->back, i, &reason), 0);
		slow += num_now_ns() - before >= (WAIT_TICK_MS - 5) * MS;
	}
	assert_int_equal(train_job_join(pid), 0);
	assert_int_equal(scene->word.n_waiters, 0);
	/* A busy machine may delay a few rounds by as much; a lost wake would be seen in many. */
	if (slow > N_ROUNDS / 100)
		fail_msg("%u of %u rounds took a tick, %.1f s in total", (unsigned)slow, N_ROUNDS,
			 (double)(num_now_ns() - begin) / 1e9);
}

static void values_arrive_asleep(void **state)
{
	(void)state;
	no_wake_is_lost(false);
}

static void values_arrive_spinning(void **state)
{
	(void)state;
	no_wake_is_lost(true);
}

static void values_may_jump_beyond(void **state)
{
	(void)state;
	pid_t other = start_rank(1), pid = start_waiter(NULL);

	wait_publish(&scene->word, 9);
	assert_int_equal(train_job_join(pid), 0);
	assert_int_equal(scene->result, 0);
	kill_rank(other);
}

static void a_word_of_several_writers_never_falls(void **state)
{
	(void)state;
	wait_publish_max(&scene->word, 7);
	wait_publish_max(&scene->word, 5);
	assert_int_equal(scene->word.value, 7);
	wait_publish_max(&scene->word, 8);
	assert_int_equal(scene->word.value, 8);
}

static void ignore_signal(int signal)
{
	(void)signal;
}

static int wait_under_signals(uint32_t rank, void *data)
{
	struct sigaction action = {.sa_handler = ignore_signal};
	struct itimerval often = {.it_interval.tv_usec = 500, .it_value.tv_usec = 500};

	(void)sigaction(SIGPROF, &action, NULL);
	(void)sigaction(SIGALRM, &action, NULL);
	(void)setitimer(ITIMER_REAL, &often, NULL);
	return wait_as_rank_0(rank, data);
}

static void signals_do_not_end_a_wait(void **state)
{
	(void)state;
	pid_t other = start_rank(1), pid = train_job_fork(wait_under_signals, 0, NULL);

	await_true(has_waiter);
	let_time_pass(3 * WAIT_TICK_MS);
	assert_int_equal(scene->woke_ns, 0);
	wait_publish(&scene->word, 1);
	assert_int_equal(train_job_join(pid), 0);
	assert_int_equal(scene->result, 0);
	kill_rank(other);
}

/* A wait that a signal interrupts, and the same wait again. */
static int wait_interruptibly(uint32_t rank, void *data)
{
	struct sigaction action = {.sa_handler = ignore_signal, .sa_flags = SA_RESTART};
	struct weightd_train_options options = {.size = sizeof(options),
						.deadline_ms = scene->deadline_ms,
						.interruptible = true};
	struct weightd_job *job = join_rank(rank);
	struct wait_place p;

	(void)data;
	(void)sigaction(SIGUSR1, &action, NULL);
	wait_place_init(&p, job, rank, 3, &options);
	p.spins = false;
	wait_publish(&scene->back, 1);
	scene->result = wait_for(&p, &scene->word, 1, &reason);
	strncpy(scene->sentence, weightd_train_error(), sizeof(scene->sentence) - 1);
	scene->woke_ns = num_now_ns();
	while (wait_for(&p, &scene->word, 1, &reason) == -EINTR)
		continue;
	weightd_job_free(job);
	return 0;
}

static bool has_woken(void)
{
	return scene->woke_ns != 0;
}

static pid_t interrupted;

/* A signal before the process sleeps does not end its wait. */
static bool is_interrupted(void)
{
	(void)kill(interrupted, SIGUSR1);
	return has_woken();
}

static void a_signal_ends_an_interruptible_wait(void **state)
{
	(void)state;
	pid_t other = start_rank(1);

	interrupted = train_job_fork(wait_interruptibly, 0, NULL);
	await_true(has_waiter);
	await_true(is_interrupted);
	assert_int_equal(scene->result, -EINTR);
	assert_contains(scene->sentence, "a signal interrupted rank 0, which waited for rank 1 to "
					 "hand over its gradients of step 17; call again");
	wait_publish(&scene->word, 1);
	assert_int_equal(train_job_join(interrupted), 0);
	assert_int_equal(scene->word.n_waiters, 0);
	kill_rank(other);
}

static void *publish_late(void *data)
{
	sigset_t all;

	(void)data;
	(void)sigfillset(&all);
	(void)pthread_sigmask(SIG_SETMASK, &all, NULL);
	await_true(has_woken);
	wait_publish(&scene->word, 1);
	return NULL;
}

static int wait_for_own_thread(uint32_t rank, void *data)
{
	struct sigaction action = {.sa_handler = ignore_signal};
	struct wait_place p;
	pthread_t thread;
	int r;

	(void)data;
	(void)sigaction(SIGUSR1, &action, NULL);
	wait_place_init(&p, NULL, rank, 1, &(struct weightd_train_options){.interruptible = true});
	if (pthread_create(&thread, NULL, publish_late, NULL) != 0)
		return 1;
	scene->result = wait_for_thread(&p, &scene->word, 1, "sum gradients", NULL, NULL);
	strncpy(scene->sentence, weightd_train_error(), sizeof(scene->sentence) - 1);
	scene->woke_ns = num_now_ns();
	while ((r = wait_for_thread(&p, &scene->word, 1, "sum gradients", NULL, NULL)) == -EINTR)
		continue;
	(void)pthread_join(thread, NULL);
	return r != 0;
}

static void a_signal_ends_a_wait_for_a_thread(void **state)
{
	(void)state;
	interrupted = train_job_fork(wait_for_own_thread, 0, NULL);
	await_true(has_waiter);
	await_true(is_interrupted);
	assert_int_equal(scene->result, -EINTR);
	assert_contains(scene->sentence, "a signal interrupted rank 0, which was to sum gradients");
	assert_int_equal(train_job_join(interrupted), 0);
}

static int wait_for_own_thread_of_removed(uint32_t rank, void *data)
{
	struct weightd_job *job = join_rank(rank);
	struct wait_place p;

	(void)data;
	place_init(&p, job);
	scene->result = wait_for_thread(&p, &scene->word, 1, "sum gradients", NULL, NULL);
	strncpy(scene->sentence, weightd_train_error(), sizeof(scene->sentence) - 1);
	weightd_job_free(job);
	return 0;
}

static void a_removed_job_ends_a_wait_for_a_thread(void **state)
{
	(void)state;
	pid_t pid = train_job_fork(wait_for_own_thread_of_removed, 0, NULL);

	await_true(has_waiter);
	train_job->removed = true;
	assert_int_equal(train_job_join(pid), 0);
	assert_int_equal(scene->result, -ESTALE);
	assert_contains(scene->sentence, "job '" TRAIN_JOB_NAME "' was removed: rank 0 cannot sum");
}

static struct wait_place *cancelled;

static void *cancel(void *data)
{
	(void)data;
	await_true(has_waiter);
	cancelled->is_cancelled = true;
	return NULL;
}

static void another_thread_cancels_a_wait(void **state)
{
	struct wait_place p;
	pthread_t thread;

	(void)state;
	wait_place_init(&p, NULL, 0, 2, NULL);
	p.deadline_ms = -1;
	cancelled = &p;
	assert_int_equal(pthread_create(&thread, NULL, cancel, NULL), 0);
	assert_int_equal(wait_for(&p, &scene->word, 1, &reason), -ECANCELED);
	assert_int_equal(pthread_join(thread, NULL), 0);
}

static void a_killed_waiter_leaves_the_word_usable(void **state)
{
	(void)state;
	pid_t other = start_rank(1), pid = start_waiter(NULL);

	kill_rank(pid);
	assert_int_equal(scene->word.n_waiters, 1); /* too high for ever */
	pid = train_job_fork(wait_as_rank_0, 0, NULL);
	while (atomic_load(&scene->word.n_waiters) != 2)
		(void)sched_yield();
	wait_publish(&scene->word, 1);
	assert_int_equal(train_job_join(pid), 0);
	assert_int_equal(scene->result, 0);
	assert_int_equal(scene->word.n_waiters, 1);
	kill_rank(other);
}

/* --- Deaths ------------------------------------------------------------------------------------- */

static void assert_noticed_soon(void)
{
	uint64_t took = scene->woke_ns - scene->died_ns;

	if (took > (NOTICED_MS + BUSY_MS) * MS)
		fail_msg("the death was noticed after %.1f ms", (double)took / 1e6);
	print_message("noticed after %.1f ms\n", (double)took / 1e6);
}

static void a_death_fails_the_wait_with_its_rank_and_step(void **state)
{
	char pid_text[32];

	(void)state;
	scene->on_death = WEIGHTD_DEATH_FAIL;
	pid_t other = start_rank(1), pid = start_waiter(NULL);

	kill_rank(other);
	assert_int_equal(train_job_join(pid), 0);
	assert_int_equal(scene->result, -EOWNERDEAD);
	assert_noticed_soon();
	(void)snprintf(pid_text, sizeof(pid_text), "(process %d)", other);
	assert_contains(scene->sentence, "rank 1 ");
	assert_contains(scene->sentence, pid_text);
	assert_contains(scene->sentence, "hand over its gradients of step 17");
	assert_contains(scene->sentence, "weightctl rm " TRAIN_JOB_NAME);
}

/* The rank that is waited for may itself wait for the dead one. */
static void a_death_of_a_third_rank_fails_the_wait(void **state)
{
	(void)state;
	scene->on_death = WEIGHTD_DEATH_FAIL;
	pid_t alive = start_rank(1), other = start_rank(2), pid = start_waiter(NULL);

	kill_rank(other);
	assert_int_equal(train_job_join(pid), 0);
	assert_int_equal(scene->result, -EOWNERDEAD);
	assert_noticed_soon();
	assert_contains(scene->sentence, "rank 2 ");
	assert_contains(scene->sentence, "waited for rank 1");
	kill_rank(alive);
}

static void a_death_is_answered_where_others_finish(void **state)
{
	(void)state;
	scene->on_death = WEIGHTD_DEATH_FINISH;
	pid_t other = start_rank(1), pid = start_waiter(NULL);

	kill_rank(other);
	assert_int_equal(train_job_join(pid), 0);
	assert_int_equal(scene->result, WAIT_DEAD);
	assert_noticed_soon();
}

static void assert_waits_on(pid_t pid)
{
	let_time_pass(4 * WAIT_TICK_MS);
	assert_int_equal(scene->woke_ns, 0);
	wait_publish(&scene->word, 1);
	assert_int_equal(train_job_join(pid), 0);
	assert_int_equal(scene->result, 0);
}

static void a_death_is_waited_out_for_the_successor(void **state)
{
	static const struct wait_reason successor = {
		.rank = 1, .step = 17, .what = "hand over its gradients", .for_successor = true};

	(void)state;
	scene->on_death = WEIGHTD_DEATH_WAIT;
	pid_t other = start_rank(1), pid = start_waiter(NULL);

	kill_rank(other);
	assert_waits_on(pid);

	scene->on_death = WEIGHTD_DEATH_FINISH;
	scene->word.value = scene->woke_ns = 0;
	other = start_rank(1);
	pid = start_waiter(&successor);
	kill_rank(other);
	assert_waits_on(pid);
}

/* All ranks were started again: a rank without a process is late, not dead. */
static void a_rank_that_is_starting_is_not_dead(void **state)
{
	static const struct wait_reason update = {
		.rank = 1, .step = 17, .what = "update its parameters", .elements = {4096, 8192}};

	(void)state;
	scene->on_death = WEIGHTD_DEATH_FAIL;
	assert_waits_on(start_waiter(NULL));

	scene->word.value = scene->woke_ns = 0;
	scene->deadline_ms = 300;
	pid_t pid = start_waiter(NULL);

	assert_int_equal(train_job_join(pid), 0);
	assert_int_equal(scene->result, -ETIMEDOUT);
	assert_contains(scene->sentence,
			"rank 1 did not hand over its gradients of step 17 within 0.3 s");
	assert_contains(scene->sentence, "has no process;");

	scene->woke_ns = 0;
	pid = start_waiter(&update);
	assert_int_equal(train_job_join(pid), 0);
	assert_contains(scene->sentence, "rank 1 did not update its parameters (elements 4096 to "
					 "8192) of step 17 within 0.3 s");
	assert_contains(scene->sentence, "start rank 1");
}

static void a_stopped_rank_ends_the_wait_at_the_deadline(void **state)
{
	char pid_text[32];

	(void)state;
	scene->on_death = WEIGHTD_DEATH_FAIL;
	scene->deadline_ms = 300;
	pid_t other = start_rank(1);

	assert_int_equal(kill(other, SIGSTOP), 0);
	uint64_t begin = num_now_ns();
	pid_t pid = start_waiter(NULL);

	assert_int_equal(train_job_join(pid), 0);
	assert_int_equal(scene->result, -ETIMEDOUT);
	assert_in_range(scene->woke_ns - begin, 300 * MS, (300 + NOTICED_MS + BUSY_MS) * MS);
	(void)snprintf(pid_text, sizeof(pid_text), "rank 1 (process %d)", other);
	assert_contains(scene->sentence, pid_text);
	assert_contains(scene->sentence, "within 0.3 s");
	kill_rank(other);
}

/* Rank 1 publishes long after rank 0's deadline of a step: it was starting. */
static int publish_when_started(uint32_t rank, void *data)
{
	struct weightd_job *job = join_rank(rank);

	(void)data;
	while (!has_waiter())
		(void)sched_yield();
	let_time_pass(6 * WAIT_TICK_MS);
	wait_publish(&scene->word, 1);
	weightd_job_free(job);
	return 0;
}

static void ranks_that_start_have_a_deadline_of_their_own(void **state)
{
	struct weightd_train_options options = {.size = sizeof(options)};
	struct weightd_job *job = join_rank(0);
	struct wait_place p;
	pid_t pid;

	(void)state;
	wait_place_init(&p, job, 0, 3, &options);
	p.spins = false;
	assert_int_equal(p.deadline_ms, 30000);
	p.is_starting = true;
	p.deadline_ms = 1;
	pid = train_job_fork(publish_when_started, 1, NULL);
	assert_int_equal(wait_for(&p, &scene->word, 1, &reason), 0);
	p.is_starting = false;
	assert_int_equal(wait_for(&p, &scene->word, 2, &reason), -ETIMEDOUT);
	assert_int_equal(train_job_join(pid), 0);
	/* One that the caller gave is that of each wait. */
	options.deadline_ms = 100;
	wait_place_init(&p, job, 0, 3, &options);
	p.is_starting = true;
	assert_int_equal(wait_for(&p, &scene->word, 2, &reason), -ETIMEDOUT);
	assert_contains(weightd_train_error(), "within 0.1 s");
	weightd_job_free(job);
}

/* Serves until the wait is over, as one does whose peers do not come; or a signal arrives. */
static bool serve_long(void *data, bool (*is_over)(void *wait), void *wait)
{
	unsigned *n = data;

	for (++*n; !is_over(wait);)
		let_time_pass(WAIT_TICK_MS);
	return false;
}

static bool serve_until_signal(void *data, bool (*is_over)(void *wait), void *wait)
{
	(void)data;
	return !is_over(wait);
}

static void who_serves_others_is_late_all_the_same(void **state)
{
	struct weightd_train_options options = {.size = sizeof(options), .deadline_ms = 300};
	struct wait_place p;
	unsigned n = 0;

	(void)state;
	wait_place_init(&p, NULL, 0, 3, &options);
	p.serve = serve_long;
	p.serve_data = &n;
	assert_int_equal(wait_for(&p, &scene->word, 1, &reason), -ETIMEDOUT);
	assert_int_equal(n, 1);
	p.serve = serve_until_signal;
	assert_int_equal(wait_for(&p, &scene->word, 1, &reason), -EINTR);
	wait_publish(&scene->word, 1);
	assert_int_equal(wait_for(&p, &scene->word, 1, &reason), 0);
}

/* The death of another rank ends what it serves, too. */
static int serve_as_rank_0(uint32_t rank, void *data)
{
	struct weightd_job *job = join_rank(rank);
	struct wait_place p;
	unsigned n = 0;

	(void)data;
	place_init(&p, job);
	p.serve = serve_long;
	p.serve_data = &n;
	wait_publish(&scene->back, 1);
	scene->result = wait_for(&p, &scene->word, 1, &reason);
	weightd_job_free(job);
	return n == 0;
}

static void who_serves_others_notices_deaths(void **state)
{
	pid_t other, pid;

	(void)state;
	scene->on_death = WEIGHTD_DEATH_FAIL;
	other = start_rank(1);
	pid = train_job_fork(serve_as_rank_0, 0, NULL);
	await_true(has_waiter);
	kill_rank(other);
	assert_int_equal(train_job_join(pid), 0);
	assert_int_equal(scene->result, -EOWNERDEAD);
}

/* Stops at the first look of a wait, and ends the wait at the third one: no other process has to be in time. */
static bool serve_and_stop(void *data, bool (*is_over)(void *wait), void *wait)
{
	unsigned *n = data;

	if (++*n == 1)
		(void)raise(SIGSTOP);
	if (*n == 3)
		wait_publish(&scene->word, 1);
	(void)is_over(wait);
	return false;
}

static int stop_as_rank_0(uint32_t rank, void *data)
{
	struct weightd_job *job = join_rank(rank);
	struct wait_place p;
	unsigned n = 0;

	(void)data;
	place_init(&p, job);
	p.serve = serve_and_stop;
	p.serve_data = &n;
	scene->result = wait_for(&p, &scene->word, 1, &reason);
	weightd_job_free(job);
	return n != 3;
}

/*
 * Time in which the waiter was stopped is no time for the others to arrive in. Each of its four sleeps counts for 0.4 s at
 * most, whatever the machine does.
 */
static void a_stopped_waiter_does_not_count_the_time(void **state)
{
	(void)state;
	scene->deadline_ms = 2000;
	scene->result = -ECANCELED;
	pid_t other = start_rank(1), pid = train_job_fork(stop_as_rank_0, 0, NULL);
	int status;

	assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
	assert_true(WIFSTOPPED(status));
	let_time_pass(2200);
	assert_int_equal(kill(pid, SIGCONT), 0);
	assert_int_equal(train_job_join(pid), 0);
	assert_int_equal(scene->result, 0);
	kill_rank(other);
}

static void a_removed_job_ends_the_wait(void **state)
{
	(void)state;
	pid_t other = start_rank(1), pid = start_waiter(NULL);

	train_job->removed = true;
	assert_int_equal(train_job_join(pid), 0);
	assert_int_equal(scene->result, -ESTALE);
	assert_contains(scene->sentence, "job '" TRAIN_JOB_NAME "' was removed");
	assert_contains(scene->sentence, "hand over its gradients of step 17");
	kill_rank(other);
}

static int publish_and_die(uint32_t rank, void *data)
{
	struct weightd_job *job = join_rank(rank);

	(void)data;
	scene->pid = getpid();
	while (!has_waiter())
		(void)sched_yield();
	wait_publish(&scene->word, 1);
	(void)kill(getpid(), SIGKILL);
	weightd_job_free(job);
	return 1;
}

static void a_value_counts_after_its_writer_died(void **state)
{
	(void)state;
	scene->on_death = WEIGHTD_DEATH_FAIL;
	for (int i = 0; i < 20; i++) {
		scene->word.value = 0;
		scene->pid = 0;
		pid_t other = train_job_fork(publish_and_die, 1, NULL);

		await_true(has_joined);
		pid_t pid = train_job_fork(wait_as_rank_0, 0, NULL);

		assert_int_equal(train_job_join(other), 128 + SIGKILL);
		assert_int_equal(train_job_join(pid), 0);
		assert_int_equal(scene->result, 0);
	}
}

/* --- CPUs --------------------------------------------------------------------------------------- */

static void write_file(const char *path, const char *text)
{
	FILE *f = fopen(path, "we");

	assert_non_null(f);
	assert_true(fputs(text, f) >= 0);
	assert_int_equal(fclose(f), 0);
}

static void a_quota_of_any_group_above_counts(void **state)
{
	char top[] = "/tmp/weightd-quota-XXXXXX", path[256], group[256];

	(void)state;
	assert_non_null(mkdtemp(top));
	(void)snprintf(group, sizeof(group), "%s/group", top);
	(void)snprintf(path, sizeof(path), "%s/a", top);
	assert_int_equal(mkdir(path, 0700), 0);
	(void)snprintf(path, sizeof(path), "%s/a/b", top);
	assert_int_equal(mkdir(path, 0700), 0);

	write_file(group, "4:cpu:/else\n0::/a/b\n");
	assert_int_equal(cpus_quota(group, top), UINT32_MAX);
	(void)snprintf(path, sizeof(path), "%s/a/b/cpu.max", top);
	write_file(path, "max 100000\n");
	assert_int_equal(cpus_quota(group, top), UINT32_MAX);
	(void)snprintf(path, sizeof(path), "%s/a/cpu.max", top);
	write_file(path, "350000 100000\n");
	assert_int_equal(cpus_quota(group, top), 3);
	(void)snprintf(path, sizeof(path), "%s/cpu.max", top);
	write_file(path, "50000 100000\n");
	assert_int_equal(cpus_quota(group, top), 0);
	write_file(group, "0::/../elsewhere\n");
	assert_int_equal(cpus_quota(group, top), 0);
	(void)unlink(path);
	assert_int_equal(cpus_quota(group, top), UINT32_MAX);
	write_file(group, "");
	assert_int_equal(cpus_quota(group, top), UINT32_MAX);

	for (int i = 0; i < 2; i++) {
		(void)snprintf(path, sizeof(path), "%s/a%s/cpu.max", top, i ? "" : "/b");
		assert_int_equal(unlink(path), 0);
		*strrchr(path, '/') = '\0';
		assert_int_equal(rmdir(path), 0);
	}
	assert_int_equal(unlink(group), 0);
	assert_int_equal(rmdir(top), 0);
}

static void ranks_that_share_too_few_cpus_do_not_spin(void **state)
{
	cpu_set_t before, one;

	(void)state;
	assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
	CPU_ZERO(&one);
	for (size_t i = 0; CPU_COUNT(&one) == 0; i++)
		if (CPU_ISSET(i, &before))
			CPU_SET(i, &one);
	assert_true(cpus_suffice(NULL, 0, 1));
	assert_false(cpus_suffice(NULL, 0, (uint32_t)CPU_COUNT(&before) + 1));
	assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
	assert_true(cpus_suffice(NULL, 0, 1));
	assert_false(cpus_suffice(NULL, 0, 2));
	assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(values_arrive_asleep),
		TEST(values_arrive_spinning),
		TEST(values_may_jump_beyond),
		TEST(a_word_of_several_writers_never_falls),
		TEST(signals_do_not_end_a_wait),
		TEST(a_signal_ends_an_interruptible_wait),
		TEST(who_serves_others_is_late_all_the_same),
		TEST(who_serves_others_notices_deaths),
		TEST(a_signal_ends_a_wait_for_a_thread),
		TEST(a_removed_job_ends_a_wait_for_a_thread),
		TEST(another_thread_cancels_a_wait),
		TEST(a_killed_waiter_leaves_the_word_usable),
		TEST(a_death_fails_the_wait_with_its_rank_and_step),
		TEST(a_death_of_a_third_rank_fails_the_wait),
		TEST(a_death_is_answered_where_others_finish),
		TEST(a_death_is_waited_out_for_the_successor),
		TEST(a_rank_that_is_starting_is_not_dead),
		TEST(a_stopped_rank_ends_the_wait_at_the_deadline),
		TEST(ranks_that_start_have_a_deadline_of_their_own),
		TEST(a_stopped_waiter_does_not_count_the_time),
		TEST(a_removed_job_ends_the_wait),
		TEST(a_value_counts_after_its_writer_died),
		TEST(a_quota_of_any_group_above_counts),
		TEST(ranks_that_share_too_few_cpus_do_not_spin),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

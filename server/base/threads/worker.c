#include "server/base/threads/worker.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/base/subordinate.h"

/* Jobs that the loop ends before it does other work. */
#define BATCH_MAX 32

/* --- turns, under the lock --- */

static struct worker_turn *turn_of(struct worker *w, uid_t uid)
{
	struct worker_turn *turn;

	if (uid == WORKER_NOBODY)
		return &w->shared;
	list_for_each(turn, &w->turns, link)
		if (turn->uid == uid)
			return turn;
	turn = calloc(1, sizeof(*turn));
	if (!turn)
		return &w->shared;
	turn->uid = uid;
	list_init(&turn->jobs);
	list_append(&w->turns, &turn->link);
	return turn;
}

/* A user that came during the step is before this one. */
static void turn_end(struct worker *w, struct worker_turn *turn)
{
	turn->is_served = false;
	list_remove(&turn->link);
	list_append(&w->turns, &turn->link);
}

static void turn_leave(struct worker *w, struct job *job)
{
	struct worker_turn *turn = take_ptr(job->turn);

	if (--turn->n_jobs > 0 || turn == &w->shared)
		return;
	list_remove(&turn->link);
	free(turn);
}

/* Queues jobs whose time has come. Returns the time of the next; 0: there is none. */
static uint64_t queue_due(struct worker *w)
{
	uint64_t now, next = 0;
	struct job *job, *tmp;

	if (list_empty(&w->later))
		return 0;
	now = num_now_ns();
	list_for_each_safe(job, tmp, &w->later, link) {
		if (job->not_before_ns <= now || job->cancelled) {
			list_remove(&job->link);
			list_append(&job->turn->jobs, &job->link);
		} else if (!next || job->not_before_ns < next) {
			next = job->not_before_ns;
		}
	}
	return next;
}

/* Takes the job whose turn it is; else returns the time until there may be one. */
static struct job *next_job(struct worker *w, uint64_t *ret_deadline_ns)
{
	struct worker_turn *turn;

	*ret_deadline_ns = queue_due(w);
	list_for_each(turn, &w->turns, link) {
		struct job *job = list_first(&turn->jobs, struct job, link);

		if (!job || turn->is_served)
			continue;
		list_remove(&job->link);
		turn->is_served = true;
		return job;
	}
	return NULL;
}

static void wait_for_job(struct worker *w, uint64_t deadline_ns)
{
	struct timespec ts = {
		.tv_sec = (time_t)(deadline_ns / 1000000000),
		.tv_nsec = (long)(deadline_ns % 1000000000),
	};

	if (deadline_ns)
		(void)pthread_cond_timedwait(&w->wake, &w->lock, &ts);
	else
		(void)pthread_cond_wait(&w->wake, &w->lock);
}

static void wake_loop(struct worker *w)
{
	/* Cannot fail: the counter is far from its limit. */
	if (eventfd_write(w->event_fd, 1) < 0)
		assert(false);
}

static void job_finish(struct worker *w, struct job *job, int r)
{
	job->result = r;
	turn_leave(w, job);
	if (list_empty(&w->finished))
		wake_loop(w);
	list_append(&w->finished, &job->link);
	if (--w->n_unfinished == 0 && w->stop)
		(void)pthread_cond_broadcast(&w->wake);
}

/* Called with the lock, which is released during the step. */
static void job_step(struct worker *w, struct job *job)
{
	uint64_t began_ns, took_ns;
	int r;

	if (w->n_threads > 1 && !list_empty(&w->later))
		(void)pthread_cond_signal(&w->wake); /* another thread waits for their time */
	pthread_mutex_unlock(&w->lock);
	began_ns = num_now_ns();
	r = job->step(job);
	took_ns = num_now_ns() - began_ns;
	job->used_ns += took_ns;
	pthread_mutex_lock(&w->lock);
	latency_add(&w->steps, took_ns);
	turn_end(w, job->turn);
	if (r == JOB_AGAIN)
		list_append(&job->turn->jobs, &job->link);
	else if (r == JOB_LATER)
		list_append(&w->later, &job->link);
	else
		job_finish(w, job, r);
}

static void *worker_main(void *arg)
{
	struct worker *w = arg;

	pthread_mutex_lock(&w->lock);
	while (!w->stop || w->n_unfinished > 0) {
		uint64_t deadline_ns;
		struct job *job = next_job(w, &deadline_ns);

		if (job)
			job_step(w, job);
		else
			wait_for_job(w, deadline_ns);
	}
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

/* --- the loop's side --- */

/* False: no job is finished. */
static bool worker_finish_job(struct worker *w)
{
	struct job *job;

	pthread_mutex_lock(&w->lock);
	job = list_first(&w->finished, struct job, link);
	if (job)
		list_remove(&job->link);
	pthread_mutex_unlock(&w->lock);
	if (!job)
		return false;
	w->n_jobs--;
	if (w->charge && job->uid != WORKER_NOBODY)
		w->charge(w->charge_arg, job->uid, job->used_ns);
	job->done(job, job->result);
	return true;
}

static void worker_on_finished(struct source *s, uint32_t events)
{
	struct worker *w = container_of(s, struct worker, source);
	unsigned n = 0;
	eventfd_t count;

	(void)events;
	(void)eventfd_read(w->event_fd, &count);
	while (n < BATCH_MAX && worker_finish_job(w))
		n++;
	if (n == BATCH_MAX)
		wake_loop(w);
}

/* Signals are the loop's: the threads are born with all of them blocked. Fewer threads will do. */
static int start_threads(struct worker *w)
{
	sigset_t all, old;
	int r = 0;

	(void)sigfillset(&all);
	(void)pthread_sigmask(SIG_SETMASK, &all, &old);
	for (w->n_started = 0; r == 0 && w->n_started < w->n_threads;) {
		r = pthread_create(&w->threads[w->n_started], NULL, worker_main, w);
		if (r == 0)
			w->n_started++;
	}
	(void)pthread_sigmask(SIG_SETMASK, &old, NULL);
	return w->n_started > 0 ? 0 : -r;
}

int worker_init_threads(struct worker *w, struct loop *l, unsigned n_threads)
{
	pthread_condattr_t attr;
	int r;

	assert(n_threads > 0 && n_threads <= WORKER_THREADS_MAX);
	*w = (struct worker){.event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
			     .n_threads = n_threads,
			     .shared.uid = WORKER_NOBODY};
	if (w->event_fd < 0)
		return -errno;
	list_init(&w->turns);
	list_init(&w->later);
	list_init(&w->finished);
	list_init(&w->shared.jobs);
	list_append(&w->turns, &w->shared.link);
	(void)pthread_mutex_init(&w->lock, NULL);
	(void)pthread_condattr_init(&attr);
	(void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	(void)pthread_cond_init(&w->wake, &attr);
	(void)pthread_condattr_destroy(&attr);
	r = loop_add(l, &w->source, w->event_fd, EPOLLIN, worker_on_finished);
	if (r == 0)
		r = start_threads(w);
	if (r < 0) {
		loop_remove(&w->source);
		w->event_fd = fd_close(w->event_fd);
	}
	return r;
}

int worker_init(struct worker *w, struct loop *l)
{
	return worker_init_threads(w, l, 1);
}

void worker_charge(struct worker *w, void (*charge)(void *arg, uid_t uid, uint64_t ns), void *arg)
{
	w->charge = charge;
	w->charge_arg = arg;
}

struct latency worker_steps(struct worker *w)
{
	struct latency steps;

	pthread_mutex_lock(&w->lock);
	steps = w->steps;
	pthread_mutex_unlock(&w->lock);
	return steps;
}

void worker_deinit(struct worker *w)
{
	/* A done callback may submit another job, the freeing of a slot: until none is left. */
	do {
		pthread_mutex_lock(&w->lock);
		w->stop = true;
		(void)pthread_cond_broadcast(&w->wake);
		pthread_mutex_unlock(&w->lock);
		while (w->n_started > 0)
			(void)pthread_join(w->threads[--w->n_started], NULL);
		while (worker_finish_job(w))
			continue;
	} while (w->n_jobs > 0 && start_threads(w) == 0);
	loop_remove(&w->source);
	w->event_fd = fd_close(w->event_fd);
	(void)pthread_cond_destroy(&w->wake);
	(void)pthread_mutex_destroy(&w->lock);
}

void worker_submit(struct worker *w, struct job *job, uid_t uid, int (*step)(struct job *),
		   void (*done)(struct job *, int))
{
	job->uid = subordinate_payer(uid);
	job->step = step;
	job->done = done;
	job->not_before_ns = 0;
	job->used_ns = 0;
	job->cancelled = false;
	w->n_jobs++;
	pthread_mutex_lock(&w->lock);
	w->n_unfinished++;
	job->turn = turn_of(w, job->uid);
	job->turn->n_jobs++;
	list_append(&job->turn->jobs, &job->link);
	(void)pthread_cond_signal(&w->wake);
	pthread_mutex_unlock(&w->lock);
}

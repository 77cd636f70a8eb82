#include "server/base/worker.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <time.h>

#include "ipc/base/fd.h"
#include "ipc/base/num.h"

/* The first job that may run now; else the time until one may. */
static struct job *next_job(struct worker *w, uint64_t *ret_deadline_ns)
{
	uint64_t now = num_now_ns();
	struct job *job;

	*ret_deadline_ns = 0;
	list_for_each(job, &w->queue, link) {
		if (job->not_before_ns <= now || job->cancelled)
			return job;
		if (!*ret_deadline_ns || job->not_before_ns < *ret_deadline_ns)
			*ret_deadline_ns = job->not_before_ns;
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

static void *worker_main(void *arg)
{
	struct worker *w = arg;

	pthread_mutex_lock(&w->lock);
	for (;;) {
		uint64_t deadline_ns;
		struct job *job = next_job(w, &deadline_ns);
		int r;

		if (!job) {
			if (w->stop && list_empty(&w->queue))
				break;
			wait_for_job(w, deadline_ns);
			continue;
		}
		list_remove(&job->link);
		pthread_mutex_unlock(&w->lock);
		r = job->step(job);
		pthread_mutex_lock(&w->lock);
		if (r > 0) {
			if (r == JOB_AGAIN)
				job->not_before_ns = 0;
			list_append(&w->queue, &job->link);
			continue;
		}
		job->result = r;
		list_append(&w->finished, &job->link);
		/* Cannot fail: the counter is far from its limit. */
		if (eventfd_write(w->event_fd, 1) < 0)
			assert(false);
	}
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

static void worker_finish_jobs(struct worker *w)
{
	for (;;) {
		struct job *job;

		pthread_mutex_lock(&w->lock);
		job = list_first(&w->finished, struct job, link);
		if (job)
			list_remove(&job->link);
		pthread_mutex_unlock(&w->lock);
		if (!job)
			return;
		w->n_jobs--;
		job->done(job, job->result);
	}
}

static void worker_on_finished(struct source *s, uint32_t events)
{
	struct worker *w = container_of(s, struct worker, source);
	eventfd_t n;

	(void)events;
	(void)eventfd_read(w->event_fd, &n);
	worker_finish_jobs(w);
}

/* Signals are the loop's: the thread is born with all of them blocked. */
static int start_thread(struct worker *w)
{
	sigset_t all, old;
	int r;

	(void)sigfillset(&all);
	(void)pthread_sigmask(SIG_SETMASK, &all, &old);
	r = pthread_create(&w->thread, NULL, worker_main, w);
	(void)pthread_sigmask(SIG_SETMASK, &old, NULL);
	return -r;
}

int worker_init(struct worker *w, struct loop *l)
{
	pthread_condattr_t attr;
	int r;

	*w = (struct worker){.event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
	if (w->event_fd < 0)
		return -errno;
	list_init(&w->queue);
	list_init(&w->finished);
	(void)pthread_mutex_init(&w->lock, NULL);
	(void)pthread_condattr_init(&attr);
	(void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	(void)pthread_cond_init(&w->wake, &attr);
	(void)pthread_condattr_destroy(&attr);
	r = loop_add(l, &w->source, w->event_fd, EPOLLIN, worker_on_finished);
	if (r == 0)
		r = start_thread(w);
	if (r < 0) {
		loop_remove(&w->source);
		w->event_fd = fd_close(w->event_fd);
	}
	return r;
}

void worker_deinit(struct worker *w)
{
	/* A done callback may submit another job, the freeing of a slot: until none is left. */
	do {
		pthread_mutex_lock(&w->lock);
		w->stop = true;
		pthread_cond_signal(&w->wake);
		pthread_mutex_unlock(&w->lock);
		(void)pthread_join(w->thread, NULL);
		worker_finish_jobs(w);
	} while (w->n_jobs > 0 && start_thread(w) == 0);
	loop_remove(&w->source);
	w->event_fd = fd_close(w->event_fd);
	(void)pthread_cond_destroy(&w->wake);
	(void)pthread_mutex_destroy(&w->lock);
}

void worker_submit(struct worker *w, struct job *job, int (*step)(struct job *),
		   void (*done)(struct job *, int))
{
	job->step = step;
	job->done = done;
	job->not_before_ns = 0;
	job->cancelled = false;
	w->n_jobs++;
	pthread_mutex_lock(&w->lock);
	list_append(&w->queue, &job->link);
	pthread_cond_signal(&w->wake);
	pthread_mutex_unlock(&w->lock);
}

/*
 * The worker
 *
 * A thread for what may take longer than a moment: checking layouts, providing pages, sealing,
 * freeing. A job is a step that is called again and again, in turn with the other jobs, so that a
 * big one does not delay a small one. The loop's thread then calls done(). Between submit and done
 * a job belongs to the worker: the loop touches nothing of it but `cancelled`.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "server/base/loop.h"

enum {
	JOB_DONE = 0,
	JOB_AGAIN = 1, /* call step again, in turn */
	JOB_LATER = 2, /* ... not before not_before_ns, which the step has set */
};

struct job {
	struct list link; /* worker::queue, or worker::finished */
	int (*step)(struct job *job); /* on the worker's thread: one of the above or a negative errno */
	void (*done)(struct job *job, int r); /* on the loop's thread; may free the job */
	uint64_t not_before_ns;
	int result;
	_Atomic bool cancelled; /* asks the step to give up soon with -ECANCELED, whatever it waits for */
};

struct worker {
	struct source source; /* on event_fd */
	int event_fd;
	pthread_t thread;
	pthread_mutex_t lock; /* protects queue, finished, stop */
	pthread_cond_t wake;
	struct list queue;
	struct list finished;
	unsigned n_jobs; /* submitted and not done; the loop's */
	bool stop;
};

int worker_init(struct worker *w, struct loop *l);
/* Runs what is queued to its end, done callbacks included. */
void worker_deinit(struct worker *w);

void worker_submit(struct worker *w, struct job *job, int (*step)(struct job *),
		   void (*done)(struct job *, int));

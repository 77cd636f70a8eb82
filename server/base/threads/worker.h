/*
 * The worker
 *
 * Threads for what may take longer than a moment: checking layouts, providing pages, sealing,
 * freeing. A job is a step that is called again and again. Users take turns at the steps, whatever
 * the number of their jobs, and so do the jobs of one user: neither a big job nor a crowd of them
 * delays another user by more than a step. Of several threads at most one works for a user, so that
 * one user whose steps block leaves the others to other users. The loop's thread then calls done().
 * Between submit and done a job belongs to the worker: the loop touches nothing of it but
 * `cancelled`.
 *
 * Jobs end in any order. A job that has to run after others is submitted when they are done.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "server/base/latency.h"
#include "server/base/loop.h"

#define WORKER_THREADS_MAX 4
#define WORKER_NOBODY ((uid_t)-1) /* no user's uid: for jobs of weightd itself */

enum {
	JOB_DONE = 0,
	JOB_AGAIN = 1, /* call step again, in turn */
	JOB_LATER = 2, /* ... not before not_before_ns, which the step has set */
};

struct job {
	struct list link; /* worker_turn::jobs, worker::later or worker::finished */
	struct worker_turn *turn;
	uid_t uid;
	int (*step)(struct job *job); /* on a worker's thread: one of the above or a negative errno */
	void (*done)(struct job *job, int r); /* on the loop's thread; may free the job */
	uint64_t not_before_ns;
	uint64_t used_ns; /* time of its steps */
	int result;
	_Atomic bool cancelled; /* asks the step to give up soon with -ECANCELED, whatever it waits for */
};

/* The jobs of one user. */
struct worker_turn {
	struct list link; /* worker::turns, the next one to be served first */
	struct list jobs; /* the next one to be stepped first */
	uid_t uid;
	unsigned n_jobs; /* those being stepped and those for later included */
	bool is_served; /* a thread is in a step of it */
};

struct worker {
	struct source source; /* on event_fd */
	int event_fd;
	pthread_t threads[WORKER_THREADS_MAX];
	unsigned n_threads, n_started;
	pthread_mutex_t lock; /* protects turns, later, finished, n_unfinished, steps, stop */
	pthread_cond_t wake;
	struct list turns;
	struct list later;
	struct list finished;
	struct worker_turn shared; /* turn of jobs of weightd, and of users for whom there is no memory */
	unsigned n_unfinished;
	struct latency steps; /* time of each step */
	unsigned n_jobs; /* submitted and not done; the loop's */
	bool stop;
	void (*charge)(void *arg, uid_t uid, uint64_t ns);
	void *charge_arg;
};

int worker_init(struct worker *w, struct loop *l);
/* With up to WORKER_THREADS_MAX threads. */
int worker_init_threads(struct worker *w, struct loop *l, unsigned n_threads);
/* Has `charge` called, on the loop's thread, for the time that each user's job took. */
void worker_charge(struct worker *w, void (*charge)(void *arg, uid_t uid, uint64_t ns), void *arg);
/* How long steps took so far. */
struct latency worker_steps(struct worker *w);
/* Runs what is queued to its end, done callbacks included. */
void worker_deinit(struct worker *w);

/* Has the worker do a job for a user. */
void worker_submit(struct worker *w, struct job *job, uid_t uid, int (*step)(struct job *),
		   void (*done)(struct job *, int));

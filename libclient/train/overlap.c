/*
 * Overlap: sums during backward
 *
 * Words of buckets record the work of the thread: odd, for sums that hold if weights are equal. It may fail, or end, at any
 * bucket.
 */
#include "libclient/train/overlap.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "libclient/train/plan/sentence.h"
#include "libclient/train/step.h"

/* Until this rank has handed over everything, others are not late. */
#define PATIENT_MS WAIT_TICK_MS

#define OVERLAP_ENDS 1 /* the trainer is being freed */

static bool bucket_is_ours(const struct weightd_train *t, uint32_t bucket, uint64_t step)
{
	return trainer_word(&arena_bucket(&t->arena, t->arena.rank, bucket)->grad) >= step;
}

/* Waits for this rank's own part, which takes as long as backward does. */
static int wait_for_own(struct weightd_train *t, uint32_t bucket, uint64_t step)
{
	struct overlap *o = &t->overlap;
	int r;

	pthread_mutex_lock(&o->lock);
	while (!o->ends && !bucket_is_ours(t, bucket, step))
		pthread_cond_wait(&o->changed, &o->lock);
	r = o->ends ? OVERLAP_ENDS : 0;
	pthread_mutex_unlock(&o->lock);
	return r;
}

static int wait_for_other(struct weightd_train *t, uint32_t rank, uint32_t bucket, uint64_t step,
			  int deadline_ms)
{
	struct overlap *o = &t->overlap;
	struct wait_reason reason = {.rank = rank,
				     .step = step,
				     .topic = CONTROL_GRADIENTS,
				     .what = "hand over a bucket of gradients",
				     .elements = t->plan->buckets[bucket],
				     .for_successor = true};

	for (;;) {
		bool is_complete, ends;
		int r;

		pthread_mutex_lock(&o->lock);
		is_complete = o->is_complete;
		ends = o->ends;
		pthread_mutex_unlock(&o->lock);
		if (ends)
			return OVERLAP_ENDS;
		o->place.deadline_ms = is_complete ? deadline_ms : PATIENT_MS;
		r = wait_for(&o->place, &arena_bucket(&t->arena, rank, bucket)->grad, step, &reason);
		if (r != -ETIMEDOUT || is_complete)
			return r;
	}
}

static int sum_step(struct weightd_train *t, uint64_t step, int deadline_ms)
{
	const struct arena *a = &t->arena;
	struct journal_step sums;

	optimizer_weigh(&sums, (const double[WEIGHTD_RANKS_MAX]){0}, t->plan->n_ranks);
	step_set_grads(&sums, a, step);
	for (uint32_t bucket = 0; bucket < t->plan->n_buckets; bucket++) {
		struct control_word *reduced = &arena_bucket(a, a->rank, bucket)->reduced;
		int r;

		if (trainer_word(reduced) >= 2 * step - 1)
			continue;
		r = wait_for_own(t, bucket, step);
		for (uint32_t rank = 0; !r && rank < t->plan->n_ranks; rank++)
			if (rank != a->rank)
				r = wait_for_other(t, rank, bucket, step, deadline_ms);
		if (r)
			return r;
		/* A rank that handed over the bucket early has gradients for all of it. */
		sums.touched = touched_find(&t->overlap.touched, a, step);
		step_sum_bucket(t, &sums, a, bucket);
		wait_publish(reduced, 2 * step - 1);
	}
	return 0;
}

static void *overlap_main(void *data)
{
	struct weightd_train *t = data;
	struct overlap *o = &t->overlap;
	int deadline_ms = o->place.deadline_ms;

	pthread_mutex_lock(&o->lock);
	while (!o->ends) {
		uint64_t step = o->step;
		int r;

		if (trainer_word(&o->done) == step) {
			pthread_cond_wait(&o->changed, &o->lock);
			continue;
		}
		pthread_mutex_unlock(&o->lock);
		r = sum_step(t, step, deadline_ms);
		pthread_mutex_lock(&o->lock);
		o->r = r;
		o->error = r < 0 ? strdup(weightd_train_error()) : NULL;
		wait_publish(&o->done, step);
	}
	pthread_mutex_unlock(&o->lock);
	return NULL;
}

/* Signals are for the caller's threads, whose waits they may interrupt. */
static int thread_start(struct weightd_train *t)
{
	sigset_t all, before;
	int r;

	(void)sigfillset(&all);
	(void)pthread_sigmask(SIG_SETMASK, &all, &before);
	r = pthread_create(&t->overlap.thread, NULL, overlap_main, t);
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	return r;
}

int overlap_init(struct weightd_train *t, const struct wait_place *place)
{
	struct overlap *o = &t->overlap;
	int r;

	if (!t->plan->overlap || !t->plan->n_buckets)
		return 0;
	r = touched_init(&o->touched, t->plan);
	if (r < 0)
		return r;
	memcpy(&o->place, place, sizeof(o->place)); /* ours, until the thread starts */
	o->place.spins = false; /* backward has the CPU */
	o->place.lane = &t->status.thread;
	o->place.is_interruptible = o->place.asks_server = false; /* the caller's thread does */
	pthread_mutex_init(&o->lock, NULL);
	pthread_cond_init(&o->changed, NULL);
	o->step = t->step;
	atomic_store(&o->done.value, t->step);
	r = thread_start(t);
	if (r) {
		pthread_cond_destroy(&o->changed);
		pthread_mutex_destroy(&o->lock);
		touched_deinit(&o->touched);
		return train_fail(-r, "cannot start the thread that sums gradients: %s",
				  strerror(r));
	}
	o->is_running = true;
	return 0;
}

void overlap_deinit(struct weightd_train *t)
{
	struct overlap *o = &t->overlap;

	if (!o->is_running)
		return;
	o->place.is_cancelled = true;
	pthread_mutex_lock(&o->lock);
	o->ends = true;
	pthread_cond_broadcast(&o->changed);
	pthread_mutex_unlock(&o->lock);
	pthread_join(o->thread, NULL);
	free(o->error);
	touched_deinit(&o->touched);
	pthread_cond_destroy(&o->changed);
	pthread_mutex_destroy(&o->lock);
}

void overlap_begin(struct weightd_train *t, uint64_t step)
{
	struct overlap *o = &t->overlap;

	if (!o->is_running)
		return;
	pthread_mutex_lock(&o->lock);
	/* The thread is idle: it has the deaths that this one can know of. */
	for (uint32_t rank = 0; rank < t->plan->n_ranks; rank++)
		o->place.pids[rank] = t->place.pids[rank];
	o->step = step;
	o->is_complete = false;
	pthread_cond_broadcast(&o->changed);
	pthread_mutex_unlock(&o->lock);
}

void overlap_notify(struct weightd_train *t)
{
	struct overlap *o = &t->overlap;

	if (!o->is_running)
		return;
	pthread_mutex_lock(&o->lock);
	pthread_cond_broadcast(&o->changed);
	pthread_mutex_unlock(&o->lock);
}

int overlap_end(struct weightd_train *t, uint64_t step)
{
	struct overlap *o = &t->overlap;
	cleanup(freep) char *error = NULL;
	int r;

	if (!o->is_running)
		return 0;
	pthread_mutex_lock(&o->lock);
	o->is_complete = true;
	pthread_cond_broadcast(&o->changed);
	pthread_mutex_unlock(&o->lock);
	status_begin_sums(&t->status);
	r = wait_for_thread(&t->place, &o->done, step, "sum gradients");
	status_end_sums(&t->status);
	if (r < 0)
		return r;
	pthread_mutex_lock(&o->lock);
	r = o->r;
	o->r = 0;
	error = take_ptr(o->error);
	pthread_mutex_unlock(&o->lock);
	return r < 0 ? train_fail(r, "%s", error ? error : "out of memory") : 0;
}

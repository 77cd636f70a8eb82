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

/* Others are not late until this rank has handed over everything. */
static int wait_for_other(struct weightd_train *t, uint32_t rank, uint32_t bucket, uint64_t step)
{
	struct wait_reason reason = {.rank = rank,
				     .step = step,
				     .topic = CONTROL_GRADIENTS,
				     .what = "hand over a bucket of gradients",
				     .elements = t->plan->buckets[bucket],
				     .for_successor = true};

	return wait_for(&t->overlap.place, &arena_bucket(&t->arena, rank, bucket)->grad, step,
			&reason);
}

void overlap_sum_bucket(struct weightd_train *t, struct touched *touched, uint32_t bucket,
			uint64_t step)
{
	const struct arena *a = &t->arena;
	struct control_word *reduced = &arena_bucket(a, a->rank, bucket)->reduced;
	struct journal_step sums;

	if (trainer_word(reduced) >= 2 * step - 1)
		return;
	step_weigh_equally(&sums, t->plan);
	step_set_grads(&sums, a, step);
	/* A rank that handed over the bucket early has gradients for all of it. */
	sums.touched = touched_find(touched, a, step);
	step_sum_bucket(t, &sums, a, bucket);
	wait_publish(reduced, 2 * step - 1);
}

int overlap_scatter(struct weightd_train *t, struct wait_place *place, const struct plan_op *op,
		    uint64_t step)
{
	if (exchange_is_done(t, op, step))
		return 0;
	overlap_sum_bucket(t, &t->touched, op->bucket, step);
	return exchange_step(t, place, op, step);
}

/*
 * Other nodes are not late before this rank has handed over everything. An engine of the caller knows no patience, and nothing
 * ends its exchanges: they are left to the caller's thread.
 */
static int scatter_bucket(struct weightd_train *t, uint32_t bucket, uint64_t step)
{
	if (!plan_sums_nodes(t->plan) || !link_can_reconnect(&t->exchange.link))
		return 0;
	return overlap_scatter(t, &t->overlap.place, plan_scatter(t->plan, bucket), step);
}

static int sum_step(struct weightd_train *t, uint64_t step)
{
	const struct arena *a = &t->arena;
	int r = 0;

	for (uint32_t bucket = 0; !r && bucket < t->plan->n_buckets; bucket++) {
		bool is_summed = trainer_word(&arena_bucket(a, a->rank, bucket)->reduced) >=
				 2 * step - 1;

		if (!is_summed)
			r = wait_for_own(t, bucket, step);
		for (uint32_t rank = 0; !r && !is_summed && rank < t->plan->n_ranks; rank++)
			if (rank != a->rank)
				r = wait_for_other(t, rank, bucket, step);
		if (!r)
			overlap_sum_bucket(t, &t->overlap.touched, bucket, step);
		if (!r)
			r = scatter_bucket(t, bucket, step);
	}
	return r;
}

static void *overlap_main(void *data)
{
	struct weightd_train *t = data;
	struct overlap *o = &t->overlap;

	pthread_mutex_lock(&o->lock);
	while (!o->ends) {
		uint64_t step = o->step;
		int r;

		if (trainer_word(&o->done) == step) {
			pthread_cond_wait(&o->changed, &o->lock);
			continue;
		}
		pthread_mutex_unlock(&o->lock);
		r = plan_pools_grads(t->plan) ? queue_serve(t, step) : sum_step(t, step);
		pthread_mutex_lock(&o->lock);
		o->r = r;
		o->error = r < 0 ? strdup(weightd_train_error()) : NULL;
		wait_publish(&o->done, step);
		queue_changed(t);
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
	pthread_condattr_t attributes;
	int r;

	if (!t->plan->overlap || !t->plan->n_buckets)
		return 0;
	pthread_mutex_init(&o->lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&o->changed, &attributes);
	pthread_condattr_destroy(&attributes);
	o->has_lock = true;
	/* An engine of the caller is used on its thread alone, and gradients in a pool cannot wait for the update. */
	if (plan_pools_grads(t->plan) && !link_can_reconnect(&t->exchange.link))
		return 0;
	r = touched_init(&o->touched, t->plan);
	if (r < 0)
		return r;
	memcpy(&o->place, place, sizeof(o->place)); /* ours, until the thread starts */
	o->place.spins = false; /* backward has the CPU */
	o->place.lane = &t->status.thread;
	o->place.is_interruptible = o->place.asks_server = false; /* the caller's thread does */
	if (plan_shards_params(t->plan)) {
		o->place.serve = exchange_serve;
		o->place.serve_data = t;
	}
	o->step = t->step;
	atomic_store(&o->done.value, t->step);
	r = thread_start(t);
	if (r) {
		touched_deinit(&o->touched);
		return train_fail(-r, "cannot start the thread that sums gradients: %s",
				  strerror(r));
	}
	o->is_running = true;
	return 0;
}

static void thread_end(struct overlap *o)
{
	o->place.is_cancelled = true;
	pthread_mutex_lock(&o->lock);
	o->ends = true;
	pthread_cond_broadcast(&o->changed);
	pthread_mutex_unlock(&o->lock);
	pthread_join(o->thread, NULL);
	touched_deinit(&o->touched);
}

void overlap_deinit(struct weightd_train *t)
{
	struct overlap *o = &t->overlap;

	if (o->is_running)
		thread_end(o);
	if (!o->has_lock)
		return;
	free(o->error);
	queue_deinit(&o->queue);
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
	o->place.is_patient = true;
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
	int r;

	if (!o->is_running)
		return 0;
	pthread_mutex_lock(&o->lock);
	o->is_complete = true;
	o->place.is_patient = false;
	pthread_cond_broadcast(&o->changed);
	pthread_mutex_unlock(&o->lock);
	status_begin_sums(&t->status);
	r = wait_for_thread(&t->place, &o->done, step, "sum gradients", NULL, NULL);
	status_end_sums(&t->status);
	return r < 0 ? r : overlap_failure(t);
}

int overlap_failure(struct weightd_train *t)
{
	struct overlap *o = &t->overlap;
	cleanup(freep) char *error = NULL;
	int r;

	pthread_mutex_lock(&o->lock);
	r = o->r;
	o->r = 0;
	error = take_ptr(o->error);
	pthread_mutex_unlock(&o->lock);
	return r < 0 ? train_fail(r, "%s", error ? error : "out of memory") : 0;
}

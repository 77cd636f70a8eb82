#include "libclient/train/queue.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "libclient/train/plan/sentence.h"
#include "libclient/train/step.h"

/* The thread or the caller's, and the step that the requests are of. */
struct worker {
	struct weightd_train *t;
	struct wait_place *place;
	struct touched *touched;
	uint64_t step;
};

void queue_deinit(struct queue *q)
{
	free(q->requests);
}

void queue_changed(struct weightd_train *t)
{
	struct control_word *changes = &t->overlap.queue.changes;

	wait_publish(changes, trainer_word(changes) + 1);
}

/* --- Requests ------------------------------------------------------------------------------------------ */

static int wait_for_others(const struct worker *w, uint32_t bucket)
{
	const struct arena *a = &w->t->arena;
	struct wait_reason reason = {.step = w->step,
				     .topic = CONTROL_GRADIENTS,
				     .what = "hand over a bucket of gradients",
				     .elements = a->plan->buckets[bucket],
				     .cause = plan_shards_params(a->plan) ? UNITS_CAUSE : NULL,
				     .for_successor = true};
	int r = 0;

	for (uint32_t rank = 0; r == 0 && rank < a->plan->n_ranks; rank++) {
		reason.rank = rank;
		r = wait_for(w->place, &arena_bucket(a, rank, bucket)->grad, w->step, &reason);
	}
	return r;
}

/* RECEIVED has room for one bucket, where pieces of this rank may be in the place of another one's of the bucket before. */
static int wait_for_received(const struct worker *w, uint32_t bucket)
{
	const struct arena *a = &w->t->arena;
	struct wait_reason reason = {.step = w->step,
				     .topic = CONTROL_SUMS,
				     .what = "sum a bucket of gradients over the nodes",
				     .for_successor = true};
	int r = 0;

	if (!bucket)
		return 0;
	reason.elements = a->plan->buckets[bucket - 1];
	for (uint32_t rank = 0; r == 0 && rank < a->plan->n_ranks; rank++) {
		reason.rank = rank;
		r = wait_for(w->place, &arena_bucket(a, rank, bucket - 1)->reduced, 2 * w->step,
			     &reason);
	}
	return r;
}

/*
 * Sums over the nodes that share the pieces, and then over replicas. A sum whose exchange is complete is not made again: a
 * later one may be in its place.
 */
static int sum_nodes(const struct worker *w, uint32_t bucket)
{
	const struct arena *a = &w->t->arena;
	const struct plan_op *scatter = plan_replicas(a->plan, bucket, PLAN_SCATTER_REPLICAS);
	const struct plan_op *gather = plan_replicas(a->plan, bucket, PLAN_GATHER_REPLICAS);
	int r;

	if (!scatter || !exchange_is_done(w->t, scatter, w->step))
		step_sum_bucket_nodes(a, bucket);
	if (!scatter)
		return 0;
	r = exchange_step(w->t, w->place, scatter, w->step);
	if (!r && !exchange_is_done(w->t, gather, w->step))
		step_sum_replicas(a, bucket);
	if (!r)
		r = exchange_step(w->t, w->place, gather, w->step);
	if (!r)
		step_place_replicas(a, bucket);
	return r;
}

static int run_sum(const struct worker *w, uint32_t bucket)
{
	const struct arena *a = &w->t->arena;
	struct control_word *reduced = &arena_bucket(a, a->rank, bucket)->reduced;
	int r = trainer_word(reduced) >= 2 * w->step - 1 ? 0 : wait_for_others(w, bucket);

	if (r < 0)
		return r;
	overlap_sum_bucket(w->t, w->touched, bucket, w->step);
	queue_changed(w->t);
	if (!plan_sums_nodes(a->plan) || trainer_word(reduced) >= 2 * w->step)
		return 0;
	r = wait_for_received(w, bucket);
	if (!r)
		r = exchange_step(w->t, w->place, plan_scatter(a->plan, bucket), w->step);
	if (r < 0)
		return r;
	r = sum_nodes(w, bucket);
	if (!r)
		wait_publish(reduced, 2 * w->step);
	return r;
}

/* Ranks of the node may still read the unit in the room, or fetch it: one that is fetched ahead may never be opened. */
static int wait_for_room(const struct worker *w, uint32_t room, uint64_t replaced)
{
	const struct arena *a = &w->t->arena;
	struct wait_reason reason = {.step = w->step,
				     .topic = CONTROL_UNITS,
				     .what = "finish with a unit of parameters",
				     .cause = UNITS_CAUSE,
				     .for_successor = true};
	int r = 0;

	for (uint32_t rank = 0; r == 0 && replaced && rank < a->plan->n_ranks; rank++) {
		reason.rank = rank;
		r = wait_for(w->place, arena_room(a, rank, room), replaced, &reason);
		/* A rank that has begun its passes fetches nothing that is older: units_begin_passes(). */
		if (!r && control_exchange_index(replaced) != CONTROL_PASSES)
			r = wait_for(w->place, &arena_rank(a, rank)->line, replaced, &reason);
	}
	return r;
}

static int run_fetch(const struct worker *w, const struct queue_request *request)
{
	const struct arena *a = &w->t->arena;
	uint32_t unit = plan_unit_of_bucket(a->plan, request->bucket);
	const struct plan_op *op = plan_fetch(a->plan, unit);
	int r = wait_for_room(w, a->plan->units[unit].room, request->replaced);

	if (r < 0)
		return r;
	step_copy_unit(a, op);
	return exchange_asked(w->t, w->place, op, request->position);
}

static int run_request(const struct worker *w, const struct queue_request *request)
{
	return request->is_fetch ? run_fetch(w, request) : run_sum(w, request->bucket);
}

/* --- The queue ----------------------------------------------------------------------------------------- */

static bool queue_first(struct weightd_train *t, struct queue_request *ret)
{
	struct overlap *o = &t->overlap;
	bool has_one;

	pthread_mutex_lock(&o->lock);
	has_one = o->queue.first < o->queue.end;
	if (has_one)
		*ret = o->queue.requests[o->queue.first];
	pthread_mutex_unlock(&o->lock);
	return has_one;
}

static void queue_drop_first(struct weightd_train *t)
{
	struct overlap *o = &t->overlap;
	struct queue *q = &o->queue;

	pthread_mutex_lock(&o->lock);
	if (++q->first == q->end)
		q->first = q->end = 0;
	pthread_mutex_unlock(&o->lock);
	queue_changed(t);
}

static int queue_run(const struct worker *w)
{
	struct queue_request request;
	int r;

	while (queue_first(w->t, &request)) {
		r = run_request(w, &request);
		if (r < 0)
			return r;
		queue_drop_first(w->t);
	}
	return 0;
}

static int queue_grow(struct queue *q)
{
	uint32_t n = q->n_allocated ? 2 * q->n_allocated : 16;
	struct queue_request *requests = reallocarray(q->requests, n, sizeof(*requests));

	if (!requests)
		return train_out_of_memory();
	q->requests = requests;
	q->n_allocated = n;
	return 0;
}

int queue_reserve(struct weightd_train *t)
{
	struct overlap *o = &t->overlap;
	struct queue *q = &o->queue;
	int r;

	pthread_mutex_lock(&o->lock);
	r = q->end == q->n_allocated ? queue_grow(q) : 0;
	pthread_mutex_unlock(&o->lock);
	return r;
}

void queue_ask(struct weightd_train *t, const struct queue_request *request)
{
	struct overlap *o = &t->overlap;
	struct queue *q = &o->queue;

	pthread_mutex_lock(&o->lock);
	q->requests[q->end++] = *request;
	pthread_cond_broadcast(&o->changed);
	pthread_mutex_unlock(&o->lock);
}

static struct worker caller_worker(struct weightd_train *t, uint64_t step)
{
	return (struct worker){t, &t->place, &t->touched, step};
}

/* The thread works at the step; false: it failed, or there is none. */
static bool thread_works(const struct weightd_train *t, uint64_t step)
{
	return t->overlap.is_running &&
	       atomic_load_explicit(&t->overlap.done.value, memory_order_acquire) < step;
}

static int wait_for_changes(struct weightd_train *t, uint64_t step, struct control_word *word,
			    uint64_t value)
{
	struct queue *q = &t->overlap.queue;
	int r = 0;

	t->overlap.place.is_patient = false;
	status_begin_sums(&t->status);
	while (r == 0 && trainer_word(word) < value && thread_works(t, step)) {
		uint64_t changes = trainer_word(&q->changes);

		if (trainer_word(word) < value && thread_works(t, step))
			r = wait_for_thread(&t->place, &q->changes, changes + 1,
					    "sum gradients and fetch parameters", NULL, NULL);
	}
	status_end_sums(&t->status);
	t->overlap.place.is_patient = true;
	return r;
}

int queue_wait_for(struct weightd_train *t, struct control_word *word, uint64_t value)
{
	uint64_t step = t->step + 1;
	struct worker w = caller_worker(t, step);
	int r = wait_for_changes(t, step, word, value);

	if (r < 0 || trainer_word(word) >= value)
		return r;
	r = overlap_failure(t);
	return r < 0 ? r : queue_run(&w);
}

int queue_finish(struct weightd_train *t, uint64_t step)
{
	struct worker w = caller_worker(t, step);
	int r = overlap_end(t, step);

	return r < 0 ? r : queue_run(&w);
}

/* --- The thread ---------------------------------------------------------------------------------------- */

static bool is_idle_over(void *data)
{
	struct weightd_train *t = data;
	struct overlap *o = &t->overlap;
	bool is_over;

	pthread_mutex_lock(&o->lock);
	is_over = o->ends || o->is_complete || o->queue.first < o->queue.end;
	pthread_mutex_unlock(&o->lock);
	return is_over;
}

/* While there is nothing to do, other ranks may need this one's end of the link. */
static void queue_idle(struct weightd_train *t)
{
	struct overlap *o = &t->overlap;
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += WAIT_TICK_MS * 1000000L;
	if (until.tv_nsec >= 1000000000L) {
		until.tv_nsec -= 1000000000L;
		until.tv_sec++;
	}
	pthread_mutex_lock(&o->lock);
	if (!o->ends && !o->is_complete && o->queue.first == o->queue.end)
		(void)pthread_cond_timedwait(&o->changed, &o->lock, &until);
	pthread_mutex_unlock(&o->lock);
	if (!is_idle_over(t))
		(void)exchange_serve(t, is_idle_over, t);
}

int queue_serve(struct weightd_train *t, uint64_t step)
{
	struct overlap *o = &t->overlap;
	struct worker w = {t, &o->place, &o->touched, step};
	bool ends = false;
	int r = 0;

	while (!r && !ends) {
		r = queue_run(&w);
		pthread_mutex_lock(&o->lock);
		ends = o->ends || (o->is_complete && o->queue.first == o->queue.end);
		pthread_mutex_unlock(&o->lock);
		if (!r && !ends)
			queue_idle(t);
	}
	return r;
}

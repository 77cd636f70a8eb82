/*
 * A step: the work of one rank
 *
 * `a` is the arena of the rank that the work belongs to: this one's, or that of a dead rank whose lock is held.
 */
#include "libclient/train/step.h"

#include <math.h>

#include "libclient/train/journal.h"
#include "libclient/train/scale.h"

/* Sums of more bytes than this do not stay in the cache until they are used. */
#define STREAM_BYTES ((uint64_t)16 << 20)

static void count_read(struct weightd_train *t, enum weightd_kind kind, uint64_t n_elements)
{
	atomic_fetch_add_explicit(&t->n_read, n_elements * plan_element_size(t->plan, kind),
				  memory_order_relaxed);
}

static void count_written(struct weightd_train *t, uint64_t n_elements)
{
	atomic_fetch_add_explicit(&t->n_written,
				  n_elements * plan_element_size(t->plan, WEIGHTD_KIND_PARAM),
				  memory_order_relaxed);
}

static uint64_t length(struct plan_interval i)
{
	return i.end - i.begin;
}

static struct plan_interval shard_of(const struct weightd_plan *p, uint32_t rank)
{
	return (struct plan_interval){p->cuts[rank], p->cuts[rank + 1]};
}

static bool find_nan(const struct arena *a, uint64_t number, uint32_t *ret_rank)
{
	for (uint32_t rank = 0; rank < a->plan->n_ranks; rank++)
		if (arena_saved(a, rank, number)->has_nan) {
			*ret_rank = rank;
			return true;
		}
	return false;
}

void step_set_grads(struct journal_step *u, const struct arena *a, uint64_t number)
{
	uint32_t n_slots = a->plan->n_slots;

	u->grad_type = optimizer_type(a->plan->grad_dtype);
	if (a->plan->has_scaling)
		u->scale *= 1 / scale_at(a, number - 1).scale;
	for (uint32_t rank = 0; rank < a->plan->n_ranks; rank++)
		u->grads[rank] = a->grads[rank * n_slots + number % n_slots];
}

void step_init(struct step *s, const struct arena *a, uint64_t number)
{
	const struct weightd_plan *p = a->plan;
	const struct control_saved *first = arena_saved(a, 0, number);
	const struct control_rank *words = arena_rank(a, a->rank);
	double weights[WEIGHTD_RANKS_MAX];

	s->number = number;
	s->is_skipped = find_nan(a, number, &s->nan_rank);
	s->max_norm = first->max_norm;
	for (uint32_t rank = 0; rank < p->n_ranks; rank++)
		weights[rank] = arena_saved(a, rank, number)->weight;
	optimizer_begin(&s->update, p, first->lr, number - words->n_skipped[(number - 1) % 2]);
	optimizer_weigh(&s->update, weights, p->n_ranks);
	step_set_grads(&s->update, a, number);
	s->update.touched = touched_find(&s->t->touched, a, number);
}

void step_sum_bucket(struct weightd_train *t, const struct journal_step *u, const struct arena *a,
		     uint32_t bucket)
{
	const struct weightd_plan *p = t->plan;
	struct plan_interval owned = plan_owned(p, a->rank, p->buckets[bucket]);
	const void *grads[KERNEL_RANKS_MAX];
	struct kernel_grads g = {
		.grads = grads,
		.weights = u->is_weighted ? u->weights : NULL,
		.n = u->n_grads,
		.scale = u->scale,
		.type = u->grad_type,
	};

	for (struct plan_interval part = touched_first(u->touched, owned); part.begin < part.end;
	     part = touched_next(u->touched, owned, part)) {
		for (uint32_t rank = 0; rank < u->n_grads; rank++)
			grads[rank] = kernel_element(u->grads[rank], u->grad_type, part.begin);
		kernels_get()->sum(&(float *){a->reduced + part.begin}, 1, &g, length(part),
				   p->n_elements * sizeof(float) > STREAM_BYTES);
		count_read(t, WEIGHTD_KIND_GRAD, length(part) * (u->n_grads - 1));
	}
	kernels_fence();
}

void step_reduce(struct step *s, const struct arena *a, uint32_t bucket)
{
	struct control_word *reduced = &arena_bucket(a, a->rank, bucket)->reduced;
	uint64_t done = trainer_word(reduced);

	if (s->is_skipped || done >= 2 * s->number)
		return;
	if (done < 2 * s->number - 1 || s->update.is_weighted)
		step_sum_bucket(s->t, &s->update, a, bucket);
	wait_publish(reduced, 2 * s->number);
}

void step_measure(struct step *s, const struct arena *a)
{
	struct control_rank *words = arena_rank(a, a->rank);
	struct plan_interval shard = shard_of(a->plan, a->rank);
	const struct touched *touched = s->update.touched;

	if (s->is_skipped || trainer_word(&words->norm_step) >= s->number)
		return;
	words->norm = 0;
	for (struct plan_interval part = touched_first(touched, shard); part.begin < part.end;
	     part = touched_next(touched, shard, part))
		words->norm += s->update.kernels->squares(a->reduced + part.begin, length(part));
	wait_publish(&words->norm_step, s->number);
}

/* torch's clip_grad_norm_, in its arithmetic: fp32. */
static float clip_coefficient(double norm, double max_norm)
{
	float coefficient = (float)max_norm / ((float)norm + 1e-6f);

	return coefficient > 1 ? 1 : coefficient;
}

void step_decide(struct step *s)
{
	struct weightd_train *t = s->t;
	double sum = 0;

	if (s->is_skipped)
		return;
	for (uint32_t rank = 0; rank < t->plan->n_ranks; rank++)
		sum += arena_rank(&t->arena, rank)->norm;
	t->norm = sqrt(sum);
	s->has_overflowed = t->plan->has_scaling && !isfinite(sum);
	s->update.grads[0] = t->arena.reduced;
	s->update.grad_type = KERNEL_F32;
	s->update.n_grads = 1;
	s->update.is_weighted = false;
	s->update.scale = s->max_norm > 0 ? clip_coefficient(t->norm, s->max_norm) : 1;
}

/* Counts the bytes that the update has left to read from other ranks, and to write for them. */
static void count_update(struct step *s, const struct arena *a)
{
	const struct weightd_plan *p = a->plan;
	const struct touched *touched = s->update.touched;
	struct plan_interval rest = {a->updated.end - journal_left(a, a->rank, s->number),
				     a->updated.end};
	uint64_t left = touched_count(touched, rest);

	if (plan_is_replicated(p))
		count_read(s->t, WEIGHTD_KIND_REDUCED,
			   left - touched_count(touched, plan_owned(p, a->rank, rest)));
	else
		count_written(s->t, left * (p->n_copies - 1));
	if (p->form == WEIGHTD_STEP_FUSED)
		count_read(s->t, WEIGHTD_KIND_GRAD, left * (p->n_ranks - 1));
}

void step_update(struct step *s, const struct arena *a)
{
	if (s->is_skipped || s->has_overflowed ||
	    trainer_word(&arena_rank(a, a->rank)->param) >= s->number)
		return;
	count_update(s, a);
	journal_update(a, a->rank, s->number, &s->update);
}

void step_commit(struct step *s, const struct arena *a)
{
	struct control_rank *words = arena_rank(a, a->rank);

	if (trainer_word(&words->param) >= s->number)
		return;
	words->n_skipped[s->number % 2] = words->n_skipped[(s->number - 1) % 2] +
					  (s->is_skipped || s->has_overflowed);
	if (a->plan->has_scaling)
		scale_commit(a, s->number, s->is_skipped, s->has_overflowed);
	wait_publish(&words->param, s->number);
}

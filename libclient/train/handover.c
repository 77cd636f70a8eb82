/*
 * The handover: tensors that are complete, and the buckets that they complete
 *
 * The bucket words in the job decide; what is counted here belongs to this process and this step.
 */
#include "libclient/train/handover.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/train/kernels/kernel.h"
#include "libclient/train/plan/sentence.h"
#include "libclient/train/trainer.h"

/* The buckets of a tensor: [first, end). Empty: it has no elements, or the plan has no buckets. */
struct bucket_range {
	uint32_t first, end;
};

static struct bucket_range buckets_of(const struct weightd_plan *p, uint32_t tensor)
{
	const struct weightd_train_tensor *t = &p->tensors[tensor];
	struct plan_interval elements = plan_elements(p, t);

	if (!p->n_buckets || !plan_is_trained(t) || elements.begin == elements.end)
		return (struct bucket_range){0, 0};
	/* The first bucket has the last elements. */
	return (struct bucket_range){plan_bucket_of(p, elements.end - 1),
				     plan_bucket_of(p, elements.begin) + 1};
}

static bool bucket_is_given(const struct weightd_train *t, uint32_t bucket, uint64_t step)
{
	return trainer_word(&arena_bucket(&t->arena, t->arena.rank, bucket)->grad) >= step;
}

static void bucket_give(struct weightd_train *t, uint32_t bucket, uint64_t step)
{
	if (!bucket_is_given(t, bucket, step))
		wait_publish(&arena_bucket(&t->arena, t->arena.rank, bucket)->grad, step);
}

/* Begins to count the tensors of a step. */
static void handover_begin(struct weightd_train *t, uint64_t step)
{
	struct handover *h = &t->handover;

	if (h->step == step)
		return;
	h->step = step;
	memset(h->is_ready, 0, t->plan->n_tensors * sizeof(*h->is_ready));
	memset(h->n_missing, 0, t->plan->n_buckets * sizeof(*h->n_missing));
	for (uint32_t i = 0; i < t->plan->n_tensors; i++) {
		struct bucket_range range = buckets_of(t->plan, i);

		for (uint32_t b = range.first; b < range.end; b++)
			h->n_missing[b]++;
	}
}

int handover_init(struct weightd_train *t)
{
	t->handover = (struct handover){
		.is_ready = calloc(t->plan->n_tensors, sizeof(bool)),
		.n_missing = calloc(t->plan->n_buckets + 1, sizeof(uint32_t)),
	};
	if (!t->handover.is_ready || !t->handover.n_missing)
		return train_fail(-ENOMEM, "no memory for %u tensors", t->plan->n_tensors);
	return 0;
}

void handover_deinit(struct weightd_train *t)
{
	free(t->handover.is_ready);
	free(t->handover.n_missing);
}

void handover_complete(struct weightd_train *t, uint64_t step)
{
	for (uint32_t b = 0; b < t->plan->n_buckets; b++)
		bucket_give(t, b, step);
	overlap_notify(t);
}

static int check_param(const struct weightd_train *t, uint32_t tensor)
{
	if (tensor >= t->plan->n_tensors)
		return train_fail(-ENOENT, "the plan has %u tensors, and no tensor %u",
				  t->plan->n_tensors, tensor);
	if (!plan_is_trained(&t->plan->tensors[tensor]))
		return train_fail(-EINVAL, "'%s' is %s, and has no gradient",
				  t->plan->tensors[tensor].name,
				  t->plan->tensors[tensor].frozen ? "frozen" : "a buffer");
	return 0;
}

int weightd_train_ready(struct weightd_train *t, uint32_t tensor)
{
	struct bucket_range range;
	int r = trainer_check(t);

	if (!r)
		r = check_param(t, tensor);
	if (r < 0)
		return r;
	handover_begin(t, t->step + 1);
	if (t->handover.is_ready[tensor])
		return 0;
	t->handover.is_ready[tensor] = true;
	range = buckets_of(t->plan, tensor);
	kernels_fence();
	for (uint32_t b = range.first; b < range.end; b++)
		if (!--t->handover.n_missing[b])
			bucket_give(t, b, t->step + 1);
	overlap_notify(t);
	return 0;
}

bool weightd_train_wants(const struct weightd_train *t, uint32_t tensor)
{
	struct bucket_range range;

	if (trainer_check(t) < 0 || check_param(t, tensor) < 0)
		return false;
	/* A tensor is complete before any of its buckets is handed over. */
	range = buckets_of(t->plan, tensor);
	for (uint32_t b = range.first; b < range.end; b++)
		if (bucket_is_given(t, b, t->step + 1))
			return false;
	return true;
}

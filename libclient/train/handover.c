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
#include "libclient/train/units.h"

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
	h->n_opened = h->n_complete = 0;
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

/* --- Buckets of a pool --------------------------------------------------------------------------------- */

static const char *first_tensor(const struct weightd_plan *p, uint32_t bucket)
{
	for (uint32_t i = 0; i < p->n_tensors; i++)
		if (plan_is_trained(&p->tensors[i]) && p->tensors[i].n_bytes &&
		    plan_elements(p, &p->tensors[i]).begin == p->buckets[bucket].begin)
			return p->tensors[i].name;
	return "";
}

static uint32_t count_complete(const struct weightd_train *t)
{
	return t->handover.step == t->step + 1 ? t->handover.n_complete : 0;
}

bool handover_is_open(const struct weightd_train *t, uint32_t bucket)
{
	const struct handover *h = &t->handover;

	return h->step == t->step + 1 && h->n_opened == bucket + 1 && h->n_complete == bucket &&
	       !bucket_is_given(t, bucket, h->step);
}

int handover_check(const struct weightd_train *t)
{
	uint32_t n = count_complete(t);

	if (!plan_pools_grads(t->plan) || n == t->plan->n_buckets)
		return 0;
	return train_fail(
		-EINVAL,
		"bucket %u of step %llu, that of '%s', was not handed over; give each tensor's "
		"gradient, or zeros, by weightd_train_bucket_open() and weightd_train_ready()",
		n, (unsigned long long)t->step + 1, first_tensor(t->plan, n));
}

static int check_bucket(const struct weightd_train *t, uint32_t bucket)
{
	uint32_t next = count_complete(t);

	if (bucket >= t->plan->n_buckets)
		return train_fail(-EINVAL, "the plan has %u buckets, and no bucket %u",
				  t->plan->n_buckets, bucket);
	if (bucket == next)
		return 0;
	return train_fail(-EINVAL,
			  "bucket %u, that of '%s', is not the next one; %u of %u were handed over in "
			  "step %llu, and they follow each other",
			  bucket, first_tensor(t->plan, bucket), next, t->plan->n_buckets,
			  (unsigned long long)t->step + 1);
}

/* All ranks of the node have read the bucket before. This one's exchange of it may still go on. */
static int wait_for_sums(struct weightd_train *t, uint32_t bucket, uint64_t step)
{
	struct control_word *own = &arena_bucket(&t->arena, t->arena.rank, bucket)->reduced;
	struct wait_reason reason = {.step = step,
				     .topic = CONTROL_SUMS,
				     .what = "sum a bucket of gradients",
				     .elements = t->plan->buckets[bucket],
				     .for_successor = true};
	int r = trainer_word(own) < 2 * step - 1 ? queue_wait_for(t, own, 2 * step - 1) : 0;

	for (uint32_t rank = 0; r == 0 && rank < t->plan->n_ranks; rank++) {
		reason.rank = rank;
		r = wait_for(&t->place, &arena_bucket(&t->arena, rank, bucket)->reduced,
			     2 * step - 1, &reason);
	}
	return r;
}

/* Between tensors are gradients of the bucket before, which a norm would count. */
static void clear_padding(struct weightd_train *t, uint32_t bucket)
{
	const struct weightd_plan *p = t->plan;
	uint64_t size = plan_element_size(p, WEIGHTD_KIND_GRAD), end = p->buckets[bucket].end;
	uint64_t first = plan_grad_first(p, bucket);
	uint8_t *grad = t->arena.grads[t->arena.rank];

	for (uint32_t i = p->n_tensors; i-- > 0;) {
		struct plan_interval elements = plan_elements(p, &p->tensors[i]);

		if (!plan_is_trained(&p->tensors[i]) || elements.begin == elements.end ||
		    elements.end > end)
			continue;
		if (elements.begin < first)
			break;
		memset(grad + (elements.end - first) * size, 0, (end - elements.end) * size);
		end = elements.begin;
	}
}

int weightd_train_bucket_open(struct weightd_train *t, uint32_t bucket)
{
	uint64_t step = t->step + 1;
	int r = trainer_check(t);

	if (r < 0 || !plan_pools_grads(t->plan))
		return r;
	r = check_bucket(t, bucket);
	if (!r && plan_shards_params(t->plan))
		r = units_begin_passes(t);
	if (r < 0)
		return r;
	handover_begin(t, step);
	if (bucket_is_given(t, bucket, step) || t->handover.n_opened == bucket + 1) {
		t->handover.n_opened = bucket + 1;
		return 0;
	}
	if (bucket)
		r = wait_for_sums(t, bucket - 1, step);
	if (r < 0)
		return r;
	clear_padding(t, bucket);
	t->handover.n_opened = bucket + 1;
	return 0;
}

/* Gives the exchange of a bucket its number, before the bucket is handed over. Plans that gather no units have fixed ones. */
static int bucket_number(struct weightd_train *t, uint32_t bucket, uint64_t step)
{
	struct control_bucket *words = arena_bucket(&t->arena, t->arena.rank, bucket);
	uint64_t index;

	if (!plan_shards_params(t->plan))
		return 0;
	index = units_count(t);
	/* The two between replicas follow it. */
	for (uint32_t i = 0; plan_n_replicas(t->plan) > 1 && i < 2; i++)
		(void)units_count(t);
	if (!bucket_is_given(t, bucket, step)) {
		words->scatter = index;
		return 0;
	}
	if (words->scatter == index)
		return 0;
	return units_lose(
		t,
		train_fail(-EUCLEAN,
			   "rank %u repeats step %llu in another order than before it was started "
			   "anew: the bucket of '%s' was exchange %llu and is %llu now; its passes "
			   "must be the same",
			   t->arena.rank, (unsigned long long)step, first_tensor(t->plan, bucket),
			   (unsigned long long)words->scatter, (unsigned long long)index));
}

static int check_ready(const struct weightd_train *t, uint32_t tensor)
{
	struct bucket_range range = buckets_of(t->plan, tensor);
	const struct handover *h = &t->handover;

	if (range.first == range.end || (h->n_opened == range.end && h->n_complete == range.first))
		return 0;
	return train_fail(
		-EINVAL,
		"bucket %u, that of '%s', is not open; call weightd_train_bucket_open() before "
		"weightd_train_ready()",
		range.first, t->plan->tensors[tensor].name);
}

/* Takes a tensor of the bucket that is open, and hands the bucket over with its last one. */
static int pool_ready(struct weightd_train *t, uint32_t tensor)
{
	struct bucket_range range = buckets_of(t->plan, tensor);
	struct queue_request request = {.bucket = range.first};
	int r = check_ready(t, tensor);

	if (r < 0 || t->handover.is_ready[tensor])
		return r;
	r = queue_reserve(t);
	if (r < 0)
		return r;
	t->handover.is_ready[tensor] = true;
	kernels_fence();
	if (range.first == range.end || --t->handover.n_missing[range.first])
		return 0;
	r = bucket_number(t, range.first, t->step + 1);
	if (r < 0)
		return r;
	t->handover.n_complete++;
	bucket_give(t, range.first, t->step + 1);
	queue_ask(t, &request);
	return 0;
}

/* --- Tensors ------------------------------------------------------------------------------------------- */

int weightd_train_ready(struct weightd_train *t, uint32_t tensor)
{
	struct bucket_range range;
	int r = trainer_check(t);

	if (!r)
		r = check_param(t, tensor);
	if (r < 0)
		return r;
	handover_begin(t, t->step + 1);
	if (plan_pools_grads(t->plan))
		return pool_ready(t, tensor);
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

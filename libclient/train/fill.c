/*
 * Values of the caller: the ranges of the job that have a tensor
 */
#include "libclient/train/fill.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "ipc/base/num.h"
#include "libclient/train/optimizer.h"
#include "libclient/train/plan/sentence.h"
#include "libclient/train/plan/spread.h"
#include "libclient/train/trainer.h"

static const enum weightd_kind kinds[] = {WEIGHTD_KIND_PARAM, WEIGHTD_KIND_MASTER,
					  WEIGHTD_KIND_FROZEN};

static uint32_t count_ranges(const struct weightd_plan *p, enum weightd_kind kind)
{
	const struct plan_part *part = plan_part(p, kind);

	return part ? part->n : 0;
}

uint32_t fill_ranges(const struct weightd_plan *p)
{
	uint32_t n = 0;

	for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
		n += count_ranges(p, kinds[i]);
	return n;
}

/* The address of a range of a part; NULL, with a sentence. */
static uint8_t *range_open(struct weightd_train *t, enum weightd_kind kind, uint32_t range)
{
	uint32_t at = range;

	for (size_t i = 0; kinds[i] != kind; i++)
		at += count_ranges(t->plan, kinds[i]);
	if (!t->filled[at])
		t->filled[at] = arena_map_all(&t->arena, kind, range);
	return t->filled[at];
}

void fill_end(struct weightd_train *t)
{
	uint32_t n = fill_ranges(t->plan);

	for (uint32_t i = 0; i < n; i++) {
		if (t->filled[i])
			arena_unmap_all(&t->arena, t->filled[i]);
		t->filled[i] = NULL;
	}
}

static void count_written(struct weightd_train *t, bool is_others, uint64_t n_bytes)
{
	if (is_others)
		atomic_fetch_add_explicit(&t->n_written, n_bytes, memory_order_relaxed);
}

/* PARAM: `data` in its own type, or its rounding. */
static int fill_params(struct weightd_train *t, const struct weightd_train_tensor *tensor,
		       const void *data)
{
	const struct weightd_plan *p = t->plan;
	struct plan_interval elements = plan_elements(p, tensor);

	for (uint32_t copy = 0; copy < p->n_copies; copy++) {
		uint8_t *to = range_open(t, WEIGHTD_KIND_PARAM, copy);

		if (!to)
			return -ENOMEM;
		kernels_get()->round(to + tensor->offset, optimizer_type(p->param_dtype), data,
				     elements.end - elements.begin);
		count_written(t, copy != plan_copy(p, t->arena.rank), tensor->n_bytes);
	}
	return 0;
}

/* The originals of parts that other nodes update have no MASTER here: see write.c. */
static int fill_spread(struct weightd_train *t, struct plan_interval elements, const float *data)
{
	const struct weightd_plan *p = t->plan;
	float *own = (float *)(void *)range_open(t, WEIGHTD_KIND_MASTER, 0);

	if (!own)
		return -ENOMEM;
	for (uint32_t node = 0; node < p->n_nodes; node++) {
		struct spread parts = spread_of_node(p, node, elements);
		float *to = node == t->arena.node ? own : t->arena.received[node];
		struct plan_piece part;

		while (spread_next(&parts, &part))
			memcpy(to + part.at, data + (part.interval.begin - elements.begin),
			       (part.interval.end - part.interval.begin) * sizeof(float));
	}
	return 0;
}

/* MASTER, where there is one: each rank has its own where it updates everything. */
static int fill_masters(struct weightd_train *t, const struct weightd_train_tensor *tensor,
			const void *data)
{
	struct plan_interval elements = plan_elements(t->plan, tensor);
	uint64_t size = (elements.end - elements.begin) * sizeof(float);
	uint32_t n = count_ranges(t->plan, WEIGHTD_KIND_MASTER);

	for (uint32_t i = 0; i < n; i++) {
		uint8_t *to = range_open(t, WEIGHTD_KIND_MASTER, i);

		if (!to)
			return -ENOMEM;
		memcpy(to + elements.begin * sizeof(float), data, size);
		count_written(t, n > 1 && i != t->arena.rank, size);
	}
	return 0;
}

/* Each node takes what it needs from there. */
static int fill_flat(struct weightd_train *t, struct plan_interval elements, const void *data)
{
	int r = values_allocate(t);

	if (!r)
		memcpy(t->values.flat + elements.begin, data,
		       (elements.end - elements.begin) * sizeof(float));
	return r;
}

int fill_param(struct weightd_train *t, uint32_t tensor, const void *data)
{
	const struct weightd_train_tensor *filled = &t->plan->tensors[tensor];
	uint8_t *frozen;
	int r;

	if (!filled->n_bytes)
		return 0; /* `data` may be NULL */
	if (t->arena.node)
		return 0; /* node 0's values count, and come from there */
	if (values_are_pooled(t->plan) && !filled->frozen)
		return fill_flat(t, plan_elements(t->plan, filled), data);
	if (filled->frozen) {
		frozen = range_open(t, WEIGHTD_KIND_FROZEN, 0);
		if (!frozen)
			return -ENOMEM;
		memcpy(frozen + filled->offset, data, filled->n_bytes);
		return 0;
	}
	r = plan_has_master(t->plan) && plan_shards_state(t->plan)
		    ? fill_spread(t, plan_elements(t->plan, filled), data)
		    : fill_masters(t, filled, data);
	return r < 0 ? r : fill_params(t, filled, data);
}

int fill_own_buffer(struct weightd_train *t, uint32_t tensor, const void *data)
{
	const struct weightd_train_tensor *filled = &t->plan->tensors[tensor];

	if (filled->n_bytes) /* `data` may be NULL else */
		memcpy(t->buffers + filled->offset, data, filled->n_bytes);
	return 0;
}

static int check_fill_param(const struct weightd_train *t, uint32_t tensor)
{
	if (!weightd_train_is_empty(t))
		return train_fail(-EALREADY, "job '%s' has its first values",
				  weightd_job_name(t->arena.job));
	if (t->arena.rank != 0)
		return train_fail(-EINVAL,
				  "rank %u cannot give '%s' its first value: rank 0 does, for all",
				  t->arena.rank, t->plan->tensors[tensor].name);
	return 0;
}

/* Those of a rank are in this process until its first step saves them. */
static int check_fill_buffer(const struct weightd_train *t, uint32_t tensor)
{
	if (!trainer_word(&trainer_words(t)->grad))
		return 0;
	return train_fail(-EALREADY,
			  "rank %u is in step %" PRIu64
			  ", which saved '%s'; give a buffer its first value before the first step",
			  t->arena.rank, trainer_word(&trainer_words(t)->grad),
			  t->plan->tensors[tensor].name);
}

static int check_fill(const struct weightd_train *t, uint32_t tensor)
{
	int r = trainer_check(t);

	if (r < 0)
		return r;
	if (tensor >= t->plan->n_tensors)
		return train_fail(-ENOENT, "the plan has %u tensors, and no tensor %u",
				  t->plan->n_tensors, tensor);
	return t->plan->tensors[tensor].role == WEIGHTD_PARAM ? check_fill_param(t, tensor)
							      : check_fill_buffer(t, tensor);
}

bool weightd_train_is_empty(const struct weightd_train *t)
{
	uint64_t sent = control_exchange(0, control_values(0, CONTROL_SENT));

	if (trainer_word(&arena_head(&t->arena)->filled))
		return false;
	/* Until then values are in the process of rank 0 alone. */
	return !values_are_pooled(t->plan) || trainer_word(&arena_rank(&t->arena, 0)->line) < sent;
}

int weightd_train_fill(struct weightd_train *t, uint32_t tensor, const void *data)
{
	int r = check_fill(t, tensor);

	if (r < 0)
		return r;
	return t->plan->tensors[tensor].role == WEIGHTD_PARAM ? fill_param(t, tensor, data)
							      : fill_own_buffer(t, tensor, data);
}

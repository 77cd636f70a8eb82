/*
 * Values of jobs that pool gradients: between the private memory of node 0 and the ranges of a node
 *
 * "zero2" on fp32 has its originals in PARAM, whole on each node; else a node has those of its pieces: in MASTER, or "zero3" on
 * fp32 in PARAM.
 */
#include "libclient/train/values.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>

#include "ipc/base/num.h"
#include "libclient/train/optimizer.h"
#include "libclient/train/plan/sentence.h"
#include "libclient/train/plan/spread.h"
#include "libclient/train/trainer.h"

static uint64_t length(struct plan_interval i)
{
	return i.end - i.begin;
}

bool values_are_pooled(const struct weightd_plan *p)
{
	return plan_pools_grads(p) && plan_sums_nodes(p);
}

/* --- Memory ------------------------------------------------------------------------------------------- */

static uint64_t flat_size(const struct weightd_plan *p)
{
	return p->n_elements * sizeof(float);
}

int values_allocate(struct weightd_train *t)
{
	const struct weightd_plan *p = t->plan;
	char size[NUM_SIZE_MAX];
	void *flat;

	if (t->values.flat || !p->n_elements)
		return 0;
	flat = mmap(NULL, flat_size(p), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (flat == MAP_FAILED)
		return train_fail(
			-ENOMEM,
			"there is no room for the values of all nodes: %" PRIu64
			" elements x 4 bytes = %s of rank 0 of node 0, until the others have them; "
			"free memory there, or load a checkpoint (weightd_train_load())",
			p->n_elements, num_format_size(size, flat_size(p)));
	t->values.flat = flat;
	return 0;
}

void values_free(struct weightd_train *t)
{
	if (t->values.flat)
		(void)munmap(t->values.flat, flat_size(t->plan));
	t->values.flat = NULL;
}

/* A part that the plan lacks is not mapped. */
static int range_open(struct weightd_train *t, enum weightd_kind kind, uint32_t range, void *ret)
{
	void *mapped = NULL;

	if (plan_part(t->plan, kind)) {
		mapped = arena_map_all(&t->arena, kind, range);
		if (!mapped)
			return -ENOMEM;
	}
	*(void **)ret = mapped;
	return 0;
}

int values_open(struct weightd_train *t)
{
	struct values *v = &t->values;
	int r = range_open(t, WEIGHTD_KIND_PARAM, 0, &v->param);

	if (!r)
		r = range_open(t, WEIGHTD_KIND_MASTER, 0, &v->master);
	if (!r)
		r = range_open(t, WEIGHTD_KIND_FROZEN, 0, &v->frozen);
	return r;
}

void values_close(struct weightd_train *t)
{
	struct values *v = &t->values;

	arena_unmap_all(&t->arena, v->param);
	arena_unmap_all(&t->arena, v->master);
	arena_unmap_all(&t->arena, v->frozen);
	*v = (struct values){.flat = v->flat};
}

/* --- Originals ---------------------------------------------------------------------------------------- */

float *values_original(const struct weightd_train *t, uint64_t place)
{
	if (plan_has_master(t->plan))
		return t->values.master + place;
	return plan_shards_params(t->plan) ? (float *)(void *)t->values.param + place : NULL;
}

static struct spread own_parts(const struct weightd_train *t)
{
	return spread_of_node(t->plan, t->arena.node,
			      (struct plan_interval){0, t->plan->n_elements});
}

static bool next_part(const struct weightd_train *t, struct spread *parts, struct plan_piece *ret)
{
	return values_original(t, 0) && spread_next(parts, ret);
}

void values_collect(struct weightd_train *t)
{
	struct spread parts = own_parts(t);
	struct plan_piece part;

	if (t->values.flat && !values_original(t, 0))
		memcpy(t->values.flat, t->values.param, flat_size(t->plan));
	while (next_part(t, &parts, &part))
		memcpy(t->values.flat + part.interval.begin, values_original(t, part.at),
		       length(part.interval) * sizeof(float));
}

/* --- PARAM -------------------------------------------------------------------------------------------- */

static void round_params(const struct weightd_train *t, uint64_t at, const float *from, uint64_t n)
{
	const struct weightd_plan *p = t->plan;

	kernels_get()->round(t->values.param + at * plan_element_size(p, WEIGHTD_KIND_PARAM),
			     optimizer_type(p->param_dtype), from, n);
}

/* PARAM whole, from its first copy into the others. */
static int copy_params(struct weightd_train *t)
{
	const struct weightd_plan *p = t->plan;
	uint64_t size = p->n_elements * plan_element_size(p, WEIGHTD_KIND_PARAM);

	for (uint32_t copy = 1; copy < p->n_copies; copy++) {
		uint8_t *to;
		int r = range_open(t, WEIGHTD_KIND_PARAM, copy, &to);

		if (r < 0)
			return r;
		if (!to)
			continue;
		memcpy(to, t->values.param, size);
		atomic_fetch_add_explicit(&t->n_written, size, memory_order_relaxed);
		arena_unmap_all(&t->arena, to);
	}
	return 0;
}

/* PARAM of the node's own pieces, by place. */
static void round_parts(const struct weightd_train *t)
{
	struct spread parts = own_parts(t);
	struct plan_piece part;

	while (plan_has_master(t->plan) && next_part(t, &parts, &part))
		round_params(t, part.at, values_original(t, part.at), length(part.interval));
}

int values_place(struct weightd_train *t)
{
	const struct weightd_plan *p = t->plan;
	struct spread parts = own_parts(t);
	struct plan_piece part;

	while (next_part(t, &parts, &part))
		memcpy(values_original(t, part.at), t->values.flat + part.interval.begin,
		       length(part.interval) * sizeof(float));
	if (!plan_shards_params(p) && p->n_elements)
		round_params(t, 0, t->values.flat, p->n_elements);
	return values_spread(t);
}

int values_spread(struct weightd_train *t)
{
	if (!plan_shards_params(t->plan))
		return copy_params(t);
	round_parts(t);
	return 0;
}

/*
 * Operations of a step, and the bytes that they move between ranks. Versions are the only order: an operation begins when
 * what it waits for has the version of its step, less the lag.
 */
#include <errno.h>
#include <stdlib.h>

#include "libclient/train/plan/build.h"
#include "libclient/train/plan/given.h"
#include "libclient/train/plan/sentence.h"

#define BEYOND_BUCKETS 4 /* operations: compute, decide, update, commit */

static void add_op(struct weightd_plan *p, struct plan_op op)
{
	p->ops[p->n_ops++] = op;
}

static struct plan_op compute_op(const struct weightd_plan *p)
{
	return (struct plan_op){
		.type = PLAN_COMPUTE,
		.from = WEIGHTD_KIND_PARAM,
		.to = WEIGHTD_KIND_GRAD,
		.placement_from = WEIGHTD_REPLICATE,
		.placement_to = WEIGHTD_PARTIAL,
		.interval = {0, p->n_elements},
		.waits = WEIGHTD_KIND_PARAM,
		.produces = WEIGHTD_KIND_GRAD,
		.lag = p->staleness,
		.resource = "compute",
	};
}

static struct plan_op reduce_op(const struct weightd_plan *p, uint32_t bucket)
{
	return (struct plan_op){
		.type = PLAN_REDUCE,
		.bucket = bucket,
		.from = WEIGHTD_KIND_GRAD,
		.to = WEIGHTD_KIND_REDUCED,
		.placement_from = WEIGHTD_PARTIAL,
		.placement_to = WEIGHTD_SHARD,
		.interval = p->buckets[bucket],
		.waits = WEIGHTD_KIND_GRAD,
		.produces = WEIGHTD_KIND_REDUCED,
		.resource = "memory",
	};
}

static struct plan_op decide_op(const struct weightd_plan *p)
{
	return (struct plan_op){
		.type = PLAN_DECIDE,
		.from = WEIGHTD_KIND_REDUCED,
		.to = WEIGHTD_KIND_JOURNAL,
		.placement_from = WEIGHTD_SHARD,
		.placement_to = WEIGHTD_SHARD,
		.interval = {0, p->n_elements},
		.waits = WEIGHTD_KIND_REDUCED,
		.produces = WEIGHTD_KIND_JOURNAL,
		.resource = "memory",
	};
}

static struct plan_op update_op(const struct weightd_plan *p)
{
	bool fused = p->form == WEIGHTD_STEP_FUSED;
	enum weightd_kind from = fused ? WEIGHTD_KIND_GRAD : WEIGHTD_KIND_REDUCED;

	return (struct plan_op){
		.type = PLAN_UPDATE,
		.from = from,
		.to = WEIGHTD_KIND_PARAM,
		.placement_from = fused ? WEIGHTD_PARTIAL : WEIGHTD_SHARD,
		.placement_to = WEIGHTD_REPLICATE,
		.interval = {0, p->n_elements},
		.waits = from,
		.produces = WEIGHTD_KIND_PARAM,
		.resource = "memory",
	};
}

static struct plan_op commit_op(const struct weightd_plan *p)
{
	return (struct plan_op){
		.type = PLAN_COMMIT,
		.from = WEIGHTD_KIND_PARAM,
		.to = WEIGHTD_KIND_PARAM,
		.placement_from = WEIGHTD_REPLICATE,
		.placement_to = WEIGHTD_REPLICATE,
		.interval = {0, p->n_elements},
		.waits = WEIGHTD_KIND_PARAM,
		.produces = WEIGHTD_KIND_JOURNAL,
		.lag = p->staleness,
		.resource = "memory",
	};
}

int build_ops(struct weightd_plan *p)
{
	p->ops = calloc((size_t)p->n_buckets + BEYOND_BUCKETS, sizeof(*p->ops));
	if (!p->ops)
		return train_out_of_memory();
	add_op(p, compute_op(p));
	for (uint32_t i = 0; i < p->n_buckets; i++)
		add_op(p, reduce_op(p, i));
	if (p->form == WEIGHTD_STEP_TWO_PHASE)
		add_op(p, decide_op(p));
	add_op(p, update_op(p));
	add_op(p, commit_op(p));
	return 0;
}

/* --- Traffic ------------------------------------------------------------------------------------ */

static uint64_t length(struct plan_interval i)
{
	return i.end - i.begin;
}

/* Bytes. GRAD of the other ranks, for the part of the sum that is this rank's. */
static uint64_t read_by(const struct weightd_plan *p, const struct plan_op *op, uint32_t rank)
{
	uint64_t owned = length(plan_owned(p, rank, op->interval));

	if (op->placement_from == WEIGHTD_PARTIAL)
		return owned * (p->n_ranks - 1) * plan_element_size(p, WEIGHTD_KIND_GRAD);
	/* Sums that the others own. */
	if (op->type == PLAN_UPDATE && plan_is_replicated(p))
		return (length(op->interval) - owned) * sizeof(float);
	return 0;
}

/* Bytes. New parameters for the copies that other ranks map. */
static uint64_t written_by(const struct weightd_plan *p, const struct plan_op *op, uint32_t rank)
{
	if (op->type != PLAN_UPDATE || plan_is_replicated(p))
		return 0;
	return length(plan_owned(p, rank, op->interval)) * (p->n_copies - 1) *
	       plan_element_size(p, WEIGHTD_KIND_PARAM);
}

int weightd_plan_traffic(const struct weightd_plan *p, uint32_t rank, struct weightd_traffic *ret)
{
	struct weightd_traffic t = {0};

	if (rank >= p->n_ranks)
		return train_fail(-ENOENT, "the plan has %u ranks, and no rank %u", p->n_ranks,
				  rank);
	for (uint32_t i = 0; i < p->n_ops; i++) {
		t.read += read_by(p, &p->ops[i], rank);
		t.written += written_by(p, &p->ops[i], rank);
	}
	return given_return(ret, GIVEN_TRAFFIC_MIN, &t, sizeof(t), "struct weightd_traffic");
}

/*
 * Operations of a step. Versions are the only order: an operation begins when what it waits for has the version of its step,
 * less the lag.
 */
#include <stdlib.h>

#include "libclient/train/plan/build.h"
#include "libclient/train/plan/sentence.h"

#define BEYOND_BUCKETS                                                                             \
	8 /* operations: compute, agree, scatter, sum, decide, update, gather, commit */

static void add_op(struct weightd_plan *p, struct plan_op op)
{
	op.every = op.every ? op.every : 1;
	p->ops[p->n_ops++] = op;
}

/* An operation that nodes exchange bytes in: they do so in this order. */
static void add_exchange(struct weightd_plan *p, struct plan_op op)
{
	p->exchanges[p->n_exchanges] = p->n_ops;
	op.exchange = ++p->n_exchanges;
	op.every = p->sync_every;
	add_op(p, op);
}

/* Asks for the FETCH of each unit while it computes: the operations behind it. */
static struct plan_op compute_op(const struct weightd_plan *p)
{
	enum weightd_kind params = plan_shards_params(p) ? WEIGHTD_KIND_GATHERED
							 : WEIGHTD_KIND_PARAM;

	return (struct plan_op){
		.type = PLAN_COMPUTE,
		.from = params,
		.to = WEIGHTD_KIND_GRAD,
		.placement_from = WEIGHTD_REPLICATE,
		.placement_to = WEIGHTD_PARTIAL,
		.interval = {0, p->n_elements},
		.waits = params,
		.produces = WEIGHTD_KIND_GRAD,
		.lag = p->staleness,
		.resource = "compute",
	};
}

/* The kind that has the sums of a node, before those of others are added. */
static enum weightd_kind sums_kind(const struct weightd_plan *p)
{
	return plan_pools_grads(p) && plan_sums_nodes(p) ? WEIGHTD_KIND_STAGED
							 : WEIGHTD_KIND_REDUCED;
}

static struct plan_op reduce_op(const struct weightd_plan *p, uint32_t bucket)
{
	return (struct plan_op){
		.type = PLAN_REDUCE,
		.bucket = bucket,
		.from = WEIGHTD_KIND_GRAD,
		.to = sums_kind(p),
		.placement_from = WEIGHTD_PARTIAL,
		.placement_to = WEIGHTD_SHARD,
		.interval = p->buckets[bucket],
		.waits = WEIGHTD_KIND_GRAD,
		.produces = sums_kind(p),
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
		.placement_to = plan_shards_params(p) ? WEIGHTD_SHARD : WEIGHTD_REPLICATE,
		.interval = {0, p->n_elements},
		.waits = from,
		.produces = WEIGHTD_KIND_PARAM,
		.resource = "memory",
	};
}

static struct plan_op commit_op(const struct weightd_plan *p)
{
	enum weightd_placement params = plan_shards_params(p) ? WEIGHTD_SHARD : WEIGHTD_REPLICATE;

	return (struct plan_op){
		.type = PLAN_COMMIT,
		.from = WEIGHTD_KIND_PARAM,
		.to = WEIGHTD_KIND_PARAM,
		.placement_from = params,
		.placement_to = params,
		.interval = {0, p->n_elements},
		.waits = WEIGHTD_KIND_PARAM,
		.produces = WEIGHTD_KIND_JOURNAL,
		.lag = p->staleness,
		.resource = "memory",
	};
}

static struct plan_op agree_op(void)
{
	return (struct plan_op){
		.type = PLAN_AGREE,
		.from = WEIGHTD_KIND_JOURNAL,
		.to = WEIGHTD_KIND_JOURNAL,
		.placement_from = WEIGHTD_SHARD,
		.placement_to = WEIGHTD_REPLICATE,
		.waits = WEIGHTD_KIND_GRAD,
		.produces = WEIGHTD_KIND_JOURNAL,
		.resource = "network",
	};
}

/* The kind that nodes sum: gradients, or with sync_every the parameters themselves. */
static enum weightd_kind summed_kind(const struct weightd_plan *p)
{
	if (!p->sync_every)
		return sums_kind(p);
	return plan_has_master(p) ? WEIGHTD_KIND_MASTER : WEIGHTD_KIND_PARAM;
}

static struct plan_op scatter_op(const struct weightd_plan *p, uint32_t bucket)
{
	return (struct plan_op){
		.type = PLAN_SCATTER,
		.bucket = bucket,
		.from = summed_kind(p),
		.to = WEIGHTD_KIND_RECEIVED,
		.placement_from = WEIGHTD_PARTIAL,
		.placement_to = WEIGHTD_SHARD,
		.interval = bucket == UINT32_MAX ? (struct plan_interval){0, p->n_elements}
						 : p->buckets[bucket],
		.waits = summed_kind(p),
		.produces = WEIGHTD_KIND_RECEIVED,
		.resource = "network",
	};
}

static struct plan_op sum_op(const struct weightd_plan *p, uint32_t bucket)
{
	enum weightd_kind to = p->sync_every ? summed_kind(p) : WEIGHTD_KIND_REDUCED;

	return (struct plan_op){
		.type = PLAN_SUM,
		.bucket = bucket,
		.every = p->sync_every,
		.from = WEIGHTD_KIND_RECEIVED,
		.to = to,
		.placement_from = WEIGHTD_SHARD,
		.placement_to = WEIGHTD_SHARD,
		.interval = bucket == UINT32_MAX ? (struct plan_interval){0, p->n_elements}
						 : p->buckets[bucket],
		.waits = WEIGHTD_KIND_RECEIVED,
		.produces = to,
		.resource = "memory",
	};
}

static struct plan_op gather_op(const struct weightd_plan *p, enum weightd_kind kind)
{
	return (struct plan_op){
		.type = PLAN_GATHER,
		.from = kind,
		.to = kind,
		.placement_from = WEIGHTD_SHARD,
		.placement_to = WEIGHTD_REPLICATE,
		.interval = {0, p->n_elements},
		.waits = kind,
		.produces = kind,
		.resource = "network",
	};
}

static void add_averages(struct weightd_plan *p)
{
	add_exchange(p, scatter_op(p, UINT32_MAX));
	add_op(p, sum_op(p, UINT32_MAX));
	add_exchange(p, gather_op(p, summed_kind(p)));
}

static struct plan_op fetch_op(const struct weightd_plan *p, uint32_t unit)
{
	return (struct plan_op){
		.type = PLAN_FETCH,
		.bucket = plan_unit_of_bucket(p, unit),
		.from = WEIGHTD_KIND_PARAM,
		.to = WEIGHTD_KIND_GATHERED,
		.placement_from = WEIGHTD_SHARD,
		.placement_to = WEIGHTD_REPLICATE,
		.interval = p->units[unit].interval,
		.waits = WEIGHTD_KIND_PARAM,
		.produces = WEIGHTD_KIND_GATHERED,
		.resource = "network",
	};
}

/* REDUCED has the sum of this replica, and in the end that of all. In between, the part that this node adds up is in STAGED. */
static struct plan_op replicas_op(const struct weightd_plan *p, uint32_t bucket,
				  enum plan_op_type type)
{
	bool scatters = type == PLAN_SCATTER_REPLICAS;

	return (struct plan_op){
		.type = type,
		.bucket = bucket,
		.from = scatters ? WEIGHTD_KIND_REDUCED : WEIGHTD_KIND_STAGED,
		.to = scatters ? WEIGHTD_KIND_RECEIVED : WEIGHTD_KIND_REDUCED,
		.placement_from = scatters ? WEIGHTD_PARTIAL : WEIGHTD_SHARD,
		.placement_to = scatters ? WEIGHTD_SHARD : WEIGHTD_REPLICATE,
		.interval = p->buckets[bucket],
		.waits = scatters ? WEIGHTD_KIND_REDUCED : WEIGHTD_KIND_RECEIVED,
		.produces = scatters ? WEIGHTD_KIND_RECEIVED : WEIGHTD_KIND_REDUCED,
		.resource = "network",
	};
}

/* Bucket by bucket, as backward completes them: there is no room to do it later. With units, those that backward lacks. */
static void add_pooled_sums(struct weightd_plan *p)
{
	bool sums_nodes = plan_sums_nodes(p), shards_params = plan_shards_params(p);

	for (uint32_t i = 0; shards_params && i < p->n_units; i++)
		add_exchange(p, fetch_op(p, i));
	for (uint32_t i = 0; i < p->n_buckets; i++) {
		uint32_t unit = plan_unit_of_bucket(p, i);

		if (shards_params && plan_is_fetched_again(p, unit))
			add_exchange(p, fetch_op(p, unit));
		add_op(p, reduce_op(p, i));
		if (sums_nodes) {
			add_exchange(p, scatter_op(p, i));
			add_op(p, sum_op(p, i));
		}
		if (plan_n_replicas(p) > 1) {
			add_exchange(p, replicas_op(p, i, PLAN_SCATTER_REPLICAS));
			add_exchange(p, replicas_op(p, i, PLAN_GATHER_REPLICAS));
		}
	}
	if (shards_params)
		p->n_asked = p->n_exchanges;
	if (sums_nodes)
		add_exchange(p, agree_op());
}

/* Sums over the ranks of the node, then over nodes. */
static void add_sums(struct weightd_plan *p)
{
	bool sums_nodes = plan_sums_nodes(p);

	for (uint32_t i = 0; sums_nodes && p->overlap && i < p->n_buckets; i++)
		add_exchange(p, scatter_op(p, i));
	if (sums_nodes)
		add_exchange(p, agree_op());
	for (uint32_t i = 0; i < p->n_buckets; i++)
		add_op(p, reduce_op(p, i));
	if (sums_nodes) {
		add_exchange(p, scatter_op(p, UINT32_MAX));
		add_op(p, sum_op(p, UINT32_MAX));
	}
}

static void add_decision(struct weightd_plan *p)
{
	if (p->form != WEIGHTD_STEP_TWO_PHASE)
		return;
	if (plan_sums_nodes(p))
		add_exchange(p, decide_op(p));
	else
		add_op(p, decide_op(p));
}

int build_ops(struct weightd_plan *p)
{
	bool sums_nodes = plan_sums_nodes(p);

	p->ops = calloc(7 * (size_t)p->n_buckets + BEYOND_BUCKETS, sizeof(*p->ops));
	p->exchanges = calloc(5 * (size_t)p->n_buckets + BEYOND_BUCKETS, sizeof(*p->exchanges));
	if (!p->ops || !p->exchanges)
		return train_out_of_memory();
	add_op(p, compute_op(p));
	if (plan_pools_grads(p))
		add_pooled_sums(p);
	else
		add_sums(p);
	add_decision(p);
	if (sums_nodes && plan_is_replicated(p))
		add_exchange(p, gather_op(p, WEIGHTD_KIND_REDUCED));
	add_op(p, update_op(p));
	if (sums_nodes && !plan_is_replicated(p) && !plan_shards_params(p))
		add_exchange(p, gather_op(p, WEIGHTD_KIND_PARAM));
	if (p->sync_every)
		add_averages(p);
	add_op(p, commit_op(p));
	return 0;
}

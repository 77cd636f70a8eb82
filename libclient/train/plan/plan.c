/*
 * Plans, as those that read them see them. Nothing changes a plan after it was made.
 */
#include "libclient/train/plan/plan.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/quote.h"
#include "ipc/dtype.h"
#include "ipc/hash.h"
#include "libclient/train/plan/given.h"
#include "libclient/train/plan/sentence.h"
#include "libclient/train/plan/strategy.h"

void weightd_plan_free(struct weightd_plan *p)
{
	if (!p)
		return;
	/* The name and the shape of a tensor that was not copied are NULL. */
	for (uint32_t i = 0; i < p->n_tensors; i++) {
		free((void *)p->tensors[i].name);
		free((void *)p->tensors[i].shape);
	}
	weightd_mesh_free(p->mesh);
	free(p->groups);
	free(p->tensors);
	free(p->by_name);
	free(p->cuts);
	free(p->runs);
	free(p->buckets);
	free(p->units);
	free(p->rooms);
	free(p->pieces);
	free(p->owned);
	free(p->updates);
	free(p->whole);
	free(p->ops);
	free(p->exchanges);
	free(p->image);
	free(p);
}

static bool is_rank(const struct weightd_plan *p, uint32_t rank)
{
	uint32_t n = weightd_mesh_n_ranks(p->mesh);

	if (rank < n)
		return true;
	(void)train_fail(-ENOENT, "the plan has %u ranks, and no rank %u", n, rank);
	return false;
}

struct plan_interval plan_owned(const struct weightd_plan *p, uint32_t rank,
				struct plan_interval interval)
{
	uint64_t begin = p->cuts[rank], end = p->cuts[rank + 1];

	begin = begin > interval.begin ? begin : interval.begin;
	end = end < interval.end ? end : interval.end;
	return (struct plan_interval){begin, end > begin ? end : begin};
}

struct plan_interval plan_updated(const struct weightd_plan *p, uint32_t rank)
{
	if (plan_is_replicated(p))
		return (struct plan_interval){0, p->n_elements};
	return (struct plan_interval){p->cuts[rank], p->cuts[rank + 1]};
}

const struct plan_pieces *plan_pieces(const struct weightd_plan *p, uint32_t node, uint32_t rank)
{
	return &p->owned[(size_t)node * p->n_ranks + rank];
}

const struct plan_piece *plan_piece_of(const struct plan_pieces *pieces, uint32_t bucket)
{
	bool has = bucket >= pieces->first && bucket - pieces->first < pieces->n;

	return has ? &pieces->pieces[bucket - pieces->first] : NULL;
}

const struct plan_pieces *plan_updates(const struct weightd_plan *p, uint32_t node, uint32_t rank)
{
	return &p->updates[(size_t)node * p->n_ranks + rank];
}

struct plan_piece plan_replica_part(const struct weightd_plan *p, const struct plan_piece *piece,
				    uint32_t node)
{
	uint64_t cuts[WEIGHTD_NODES_MAX + 1], begin = piece->interval.begin;
	uint32_t replica = node / p->n_sharing;

	(void)weightd_cuts(piece->interval.end - begin, PLAN_CUT, plan_n_replicas(p), cuts);
	return (struct plan_piece){{begin + cuts[replica], begin + cuts[replica + 1]},
				   piece->at + cuts[replica],
				   piece->received + cuts[replica]};
}

uint64_t plan_element_size(const struct weightd_plan *p, enum weightd_kind kind)
{
	switch (kind) {
	case WEIGHTD_KIND_PARAM:
	case WEIGHTD_KIND_GATHERED:
		return dtype_bits(p->param_dtype) / 8;
	case WEIGHTD_KIND_GRAD:
		return dtype_bits(p->grad_dtype) / 8;
	case WEIGHTD_KIND_REDUCED:
	case WEIGHTD_KIND_RECEIVED:
	case WEIGHTD_KIND_STAGED:
	case WEIGHTD_KIND_MASTER:
	case WEIGHTD_KIND_MOMENTS:
		return sizeof(float);
	default:
		return 0;
	}
}

struct plan_interval plan_elements(const struct weightd_plan *p,
				   const struct weightd_train_tensor *t)
{
	uint64_t size = plan_element_size(p, WEIGHTD_KIND_PARAM), begin = t->offset / size;

	return (struct plan_interval){begin, begin + t->n_bytes / size};
}

bool plan_has_master(const struct weightd_plan *p)
{
	return p->param_dtype != WEIGHTD_F32;
}

const struct plan_part *plan_part(const struct weightd_plan *p, enum weightd_kind kind)
{
	for (uint32_t i = 0; i < p->n_parts; i++)
		if (p->parts[i].kind == kind)
			return &p->parts[i];
	return NULL;
}

bool plan_is_replicated(const struct weightd_plan *p)
{
	return p->row->update == WEIGHTD_REPLICATE;
}

bool plan_shards_state(const struct weightd_plan *p)
{
	return plan_sums_nodes(p) && !plan_is_replicated(p);
}

bool plan_pools_grads(const struct weightd_plan *p)
{
	return p->row->pools_grads;
}

bool plan_shards_params(const struct weightd_plan *p)
{
	return p->row->has_units && p->n_sharing > 1;
}

uint32_t plan_copy(const struct weightd_plan *p, uint32_t rank)
{
	return (uint32_t)((uint64_t)rank * p->n_copies / p->n_ranks);
}

uint32_t plan_bucket_of(const struct weightd_plan *p, uint64_t element)
{
	uint32_t first = 0, last = p->n_buckets - 1;

	/* The first bucket has the last elements. */
	while (first < last) {
		uint32_t middle = first + (last - first) / 2;

		if (p->buckets[middle].begin <= element)
			last = middle;
		else
			first = middle + 1;
	}
	return first;
}

const struct plan_op *plan_exchange(const struct weightd_plan *p, uint64_t index)
{
	return index && index <= p->n_exchanges ? &p->ops[p->exchanges[index - 1]] : NULL;
}

const struct plan_op *plan_scatter(const struct weightd_plan *p, uint32_t bucket)
{
	const struct plan_op *op = NULL;

	/* They are the first ones, unless there are those of units among them. */
	for (uint64_t i = bucket + 1ull; i <= p->n_exchanges; i++) {
		op = plan_exchange(p, i);
		if (op->type == PLAN_SCATTER && op->bucket == bucket)
			return op;
	}
	return NULL;
}

const struct plan_op *plan_replicas(const struct weightd_plan *p, uint32_t bucket,
				    enum plan_op_type type)
{
	uint32_t behind = type == PLAN_GATHER_REPLICAS ? 2 : 1;

	return plan_n_replicas(p) > 1 ? plan_exchange(p, plan_scatter(p, bucket)->exchange + behind)
				      : NULL;
}

const struct plan_op *plan_fetch(const struct weightd_plan *p, uint32_t unit)
{
	return plan_exchange(p, unit + 1ull); /* forward asks for each */
}

void weightd_plan_hash(const struct weightd_plan *p, uint8_t ret[16])
{
	hash128(p->image, p->image_size, ret);
}

const void *weightd_plan_image(const struct weightd_plan *p, uint64_t *ret_size)
{
	*ret_size = p->image_size;
	return p->image;
}

const struct weightd_mesh *weightd_plan_mesh(const struct weightd_plan *p)
{
	return p->mesh;
}

uint32_t weightd_plan_n_tensors(const struct weightd_plan *p)
{
	return p->n_tensors;
}

int weightd_plan_tensor(const struct weightd_plan *p, uint32_t index,
			struct weightd_train_tensor *ret)
{
	struct weightd_train_tensor t;

	if (index >= p->n_tensors)
		return train_fail(-ENOENT, "the plan has %u tensors, and no tensor %u",
				  p->n_tensors, index);
	t = p->tensors[index];
	return given_return(ret, GIVEN_TENSOR_MIN, &t, sizeof(t), "struct weightd_train_tensor");
}

int weightd_plan_find(const struct weightd_plan *p, const char *name, uint32_t *ret_index)
{
	uint32_t first = 0, end = p->n_tensors;
	struct quote q;

	while (first < end) {
		uint32_t middle = first + (end - first) / 2;
		int order = strcmp(name, p->tensors[p->by_name[middle]].name);

		if (order == 0) {
			*ret_index = p->by_name[middle];
			return 0;
		}
		if (order < 0)
			end = middle;
		else
			first = middle + 1;
	}
	return train_fail(-ENOENT, "the plan has no tensor %s", quote_name(&q, name));
}

uint64_t weightd_plan_bytes(const struct weightd_plan *p, enum weightd_kind kind)
{
	const struct plan_part *part = plan_part(p, kind);

	return part ? part->n * part->stride : 0;
}

uint64_t weightd_plan_padding(const struct weightd_plan *p)
{
	const struct plan_part *param = plan_part(p, WEIGHTD_KIND_PARAM);

	return param->stride - param->used + p->n_padding * plan_element_size(p, WEIGHTD_KIND_PARAM);
}

int weightd_plan_shard(const struct weightd_plan *p, uint32_t rank, uint64_t *ret_begin,
		       uint64_t *ret_end)
{
	struct plan_interval updated;

	if (!is_rank(p, rank))
		return -ENOENT;
	updated = plan_updated(p, rank % p->n_ranks);
	*ret_begin = updated.begin;
	*ret_end = updated.end;
	return 0;
}

int weightd_plan_bucket(const struct weightd_plan *p, uint32_t tensor, uint32_t *ret)
{
	const struct weightd_train_tensor *t = tensor < p->n_tensors ? &p->tensors[tensor] : NULL;

	if (!t)
		return train_fail(-ENOENT, "the plan has %u tensors, and no tensor %u",
				  p->n_tensors, tensor);
	if (!plan_is_trained(t) || !t->n_bytes || !p->n_buckets)
		return train_fail(-ENOENT, "'%s' is in no bucket", t->name);
	*ret = plan_bucket_of(p, plan_elements(p, t).begin);
	return 0;
}

uint32_t weightd_plan_n_units(const struct weightd_plan *p)
{
	return p->n_units;
}

uint32_t weightd_plan_n_nodes(const struct weightd_plan *p)
{
	return p->n_nodes;
}

int weightd_plan_piece(const struct weightd_plan *p, uint32_t rank, uint32_t index,
		       uint64_t *ret_begin, uint64_t *ret_end)
{
	const struct plan_pieces *updates;

	if (!is_rank(p, rank))
		return -ENOENT;
	updates = plan_updates(p, rank / p->n_ranks, rank % p->n_ranks);
	if (index >= updates->n)
		return train_fail(-ENOENT, "rank %u updates %u pieces, and there is no piece %u",
				  rank, updates->n, index);
	*ret_begin = updates->pieces[index].interval.begin;
	*ret_end = updates->pieces[index].interval.end;
	return 0;
}

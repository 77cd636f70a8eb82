/*
 * Bytes that the operations of a step move between ranks, inside a node and between nodes. The executor counts the same at
 * other places: where it moves them.
 */
#include <errno.h>

#include "libclient/train/plan/control.h"
#include "libclient/train/plan/given.h"
#include "libclient/train/plan/sentence.h"

/* A rank of a node, and what it owns there. */
struct owner {
	uint32_t node, rank;
	const struct plan_pieces *pieces;
	uint64_t n_shard; /* elements */
};

static uint64_t length(struct plan_interval i)
{
	return i.end - i.begin;
}

/* Bytes. GRAD of the other ranks of the node, for the part of the sum that is this rank's. */
static uint64_t read_by(const struct weightd_plan *p, const struct plan_op *op,
			const struct owner *o)
{
	uint64_t owned = length(plan_owned(p, o->rank, op->interval));

	if (op->from == WEIGHTD_KIND_GRAD)
		return owned * (p->n_ranks - 1) * plan_element_size(p, WEIGHTD_KIND_GRAD);
	/* Sums that the others own. */
	if (op->type == PLAN_UPDATE && plan_is_replicated(p))
		return (length(op->interval) - owned) * sizeof(float);
	return 0;
}

/* Elements of PARAM that the rank makes, or receives from other nodes. */
static uint64_t made_by(const struct weightd_plan *p, const struct plan_op *op,
			const struct owner *o)
{
	if (op->type == PLAN_UPDATE)
		return plan_updates(p, o->node, o->rank)->n_elements;
	if (op->type == PLAN_GATHER)
		return p->sync_every ? o->n_shard : o->n_shard - o->pieces->n_elements;
	return 0;
}

/* Bytes. New parameters for the copies that other ranks map. */
static uint64_t written_by(const struct weightd_plan *p, const struct plan_op *op,
			   const struct owner *o)
{
	if (plan_is_replicated(p))
		return 0;
	return made_by(p, op, o) * (p->n_copies - 1) * plan_element_size(p, WEIGHTD_KIND_PARAM);
}

/* Elements that go to their owners. */
static uint64_t scattered_by(const struct weightd_plan *p, const struct plan_op *op,
			     const struct owner *o)
{
	bool went_during_backward = p->overlap && plan_sums_nodes(p);
	const struct plan_piece *own;

	if (op->bucket == UINT32_MAX)
		return went_during_backward ? 0 : o->n_shard - o->pieces->n_elements;
	own = plan_piece_of(o->pieces, op->bucket);
	return length(plan_owned(p, o->rank, op->interval)) - (own ? length(own->interval) : 0);
}

/* Elements of a unit that the rank has. */
static uint64_t fetched_from(const struct plan_op *op, const struct owner *o)
{
	const struct plan_piece *own = plan_piece_of(o->pieces, op->bucket);

	return own ? length(own->interval) : 0;
}

/* Elements of the piece of a bucket that the replica of this rank adds up, or the other ones. */
static uint64_t between_replicas(const struct weightd_plan *p, const struct plan_op *op,
				 const struct owner *o)
{
	const struct plan_piece *piece = plan_piece_of(o->pieces, op->bucket);
	uint64_t own;

	if (!piece)
		return 0;
	own = length(plan_replica_part(p, piece, o->node).interval);
	return op->type == PLAN_SCATTER_REPLICAS ? length(piece->interval) - own
						 : own * (plan_n_replicas(p) - 1);
}

/* Bytes on sockets, to nodes of the same replica. */
static uint64_t sent_by(const struct weightd_plan *p, const struct plan_op *op,
			const struct owner *o)
{
	uint64_t n_others = p->n_sharing - 1;

	if (!op->exchange)
		return 0;
	switch (op->type) {
	case PLAN_AGREE:
		return n_others * control_layout(p).summary_stride;
	case PLAN_SCATTER:
		return scattered_by(p, op, o) * plan_element_size(p, op->from);
	case PLAN_FETCH:
		return n_others * fetched_from(op, o) * plan_element_size(p, op->from);
	case PLAN_DECIDE:
		return n_others * sizeof(double);
	case PLAN_GATHER:
		return n_others * o->pieces->n_elements * plan_element_size(p, op->from);
	default:
		return 0;
	}
}

/* Bytes on sockets, to nodes of other replicas. */
static uint64_t sent_to_replicas(const struct weightd_plan *p, const struct plan_op *op,
				 const struct owner *o)
{
	uint64_t n_others = p->n_nodes - p->n_sharing;

	if (!op->exchange)
		return 0;
	switch (op->type) {
	case PLAN_AGREE:
		return n_others * control_layout(p).summary_stride;
	case PLAN_SCATTER_REPLICAS:
	case PLAN_GATHER_REPLICAS:
		return between_replicas(p, op, o) * sizeof(float);
	case PLAN_DECIDE:
		return n_others * sizeof(double);
	default:
		return 0;
	}
}

int weightd_plan_traffic(const struct weightd_plan *p, uint32_t rank, struct weightd_traffic *ret)
{
	uint32_t n = weightd_mesh_n_ranks(p->mesh);
	struct owner o = {.node = rank / p->n_ranks, .rank = rank % p->n_ranks};
	struct weightd_traffic t = {0};

	if (rank >= n)
		return train_fail(-ENOENT, "the plan has %u ranks, and no rank %u", n, rank);
	o.pieces = plan_pieces(p, o.node, o.rank);
	o.n_shard = p->cuts[o.rank + 1] - p->cuts[o.rank];
	for (uint32_t i = 0; i < p->n_ops; i++) {
		t.read += read_by(p, &p->ops[i], &o);
		t.written += written_by(p, &p->ops[i], &o);
		t.sent += sent_by(p, &p->ops[i], &o);
		t.sent_replicas += sent_to_replicas(p, &p->ops[i], &o);
	}
	t.sent += t.sent_replicas;
	return given_return(ret, GIVEN_TRAFFIC_MIN, &t, sizeof(t), "struct weightd_traffic");
}

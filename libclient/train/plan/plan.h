/*
 * Plans
 *
 * The tensors of a model, the placement of each kind of memory, and the operations of a step. A plan is a pure function of
 * its options: every rank makes the same one. Nothing in it is an address; the executor runs it on the parts of a job.
 *
 * The trained parameters are one flat range of elements: tensors in order, each at a multiple of PLAN_ALIGN bytes of
 * PARAM. Shards, buckets and runs are intervals of it, counted in elements; each kind of memory has elements of its own
 * size.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "weightd-train.h"

#define PLAN_ALIGN 64 /* bytes: a cache line */
#define PLAN_CUT 32 /* elements: shards begin at multiples of it */
#define PLAN_BLOCK                                                                                 \
	512 /* elements of a block of the journal: with its log it stays in the L1 and L2 caches */
#define PLAN_GROUPS_MAX 64
#define PLAN_PAGE 4096 /* bytes: ranks' ranges within a part begin at multiples of it */
/* Bytes: ranges begin at multiples of it where that costs 1/1024 of them at most, for huge pages. */
#define PLAN_HUGE 2097152
/* control_journal() has 32 bits for a block. */
#define PLAN_ELEMENTS_MAX (((1ull << 32) - 1) * PLAN_BLOCK)
#define PLAN_BUCKETS_MAX 16384
#define PLAN_STALENESS_MAX 63
#define PLAN_STATE_MAX 1048576
#define PLAN_STRATEGY_MAX 15
#define PLAN_RELEASE_MAX 15

struct plan_interval {
	uint64_t begin, end; /* elements */
};

/*
 * An interval that a rank owns, and the place of its first element among all that the ranks of its node own: in a range of
 * MASTER or MOMENTS, and of PARAM with plan_shards_params(). Its place in RECEIVED is the same, but with plan_pools_grads(),
 * where RECEIVED has room for one bucket.
 */
struct plan_piece {
	struct plan_interval interval;
	uint64_t at;
	uint64_t received;
};

/*
 * Parameters that are gathered at once: bucket n_buckets - 1 - i is unit i. Each has a room in GATHERED, where it takes the
 * place of another one of its level.
 */
struct plan_unit {
	struct plan_interval interval;
	uint32_t level;
	uint32_t number; /* among the units of its level, from 0 on */
	uint32_t room;
};

struct plan_room {
	uint64_t offset, size; /* bytes in GATHERED: whole pages */
	uint32_t level;
	uint32_t last; /* the last unit that forward puts into it, which backward finds there */
};

/*
 * Pieces of a rank, in order of their places. Several nodes that sum gradients have one for each bucket that overlaps with the
 * shard, with the last elements first; it may be empty. Else it is one.
 */
struct plan_pieces {
	const struct plan_piece *pieces;
	uint32_t n; /* the same on all nodes; 1 at least */
	uint32_t first; /* the bucket of pieces[0]; those behind it follow */
	uint64_t n_elements; /* of all of them */
};

/* An interval of tensors of one parameter group. Runs cover the flat range in order; padding belongs to its left neighbour. */
struct plan_run {
	struct plan_interval interval;
	uint32_t group;
};

/*
 * A part of the job: `n` ranges of `stride` bytes each, of which `used` are in use.
 *	PARAM		n_copies: see plan_copy(); with plan_shards_params() 1, of n_state elements: see plan_updates()
 *	GRAD		n_ranks * n_slots: rank r, slot s at r * n_slots + s. With plan_pools_grads() of n_bucket elements
 *	REDUCED		1; two-phase plans. With plan_pools_grads() of n_state elements, by place
 *	RECEIVED	n_nodes, of n_received elements: what each other node has for the pieces of this one, and in its
 *			own range their sum, which with plan_pools_grads() is in REDUCED; several nodes
 *	STAGED		2, of n_bucket elements each: sums of bucket b in b % 2; several nodes, with plan_pools_grads()
 *	GATHERED	1: the rooms of units; plan_shards_params()
 *	MASTER		as MOMENTS; parameters of 16 bits
 *	MOMENTS		1, or n_ranks where each rank updates everything; moment j of place i at j * n_state + i: see plan_updates()
 *	BUFFER		n_ranks * 2: rank r, slot s at r * 2 + s; models with buffers
 *	FROZEN		1; models with frozen parameters
 */
struct plan_part {
	enum weightd_kind kind;
	uint32_t n;
	uint64_t used, stride;
	enum weightd_placement placement;
};

enum plan_op_type {
	PLAN_COMPUTE, /* the caller's forward and backward; hands over GRAD */
	PLAN_AGREE, /* several nodes: the summaries of all nodes: weights, losses that are no numbers, unused parameters */
	PLAN_REDUCE, /* REDUCED of a bucket: sum over the ranks of the node, of the part of its interval in the rank's shard */
	/* Several nodes: each rank sends the pieces of others, and receives theirs of its own into RECEIVED */
	PLAN_SCATTER,
	PLAN_SUM, /* the sum over nodes of the rank's pieces, from RECEIVED */
	PLAN_DECIDE, /* the norm over all shards, and whether to skip */
	PLAN_UPDATE, /* the optimizer on `interval`; from GRAD of all ranks (fused) or from REDUCED */
	PLAN_GATHER, /* several nodes: each rank sends its pieces, and receives those of its shard that others own */
	PLAN_COMMIT, /* all ranks have updated */
	/* "zero3" on several nodes: PARAM of a unit into GATHERED. The caller's forward and backward ask for it: units.h */
	PLAN_FETCH,
	/*
	 * Several replicas: their sums of a bucket. Each piece is cut into a part for each replica: nodes with the same piece
	 * send each other those of others, add up their own, and send the result.
	 */
	PLAN_SCATTER_REPLICAS,
	PLAN_GATHER_REPLICAS,
};

/* One operation. The ranges of a rank are its own: plan_owned(). */
struct plan_op {
	enum plan_op_type type;
	/* REDUCE; SCATTER during backward, UINT32_MAX: of all of them; sums of replicas; FETCH: that of the unit */
	uint32_t bucket;
	uint32_t exchange; /* place among the exchanges of a step, from 1 on; 0: nothing goes between nodes */
	uint32_t every; /* steps; 1: in each one */
	enum weightd_kind from, to; /* kinds read and written */
	enum weightd_placement placement_from,
		placement_to; /* of the value; equal where nothing moves */
	struct plan_interval interval; /* elements of the flat range, of all ranks together */
	enum weightd_kind waits,
		produces; /* kinds with a version to wait for, and to produce; JOURNAL: none */
	uint32_t lag; /* versions that may be missing from what it waits for */
	const char *resource; /* "compute", "memory" or "network" */
};

struct weightd_plan {
	char release[PLAN_RELEASE_MAX + 1]; /* of the library that made it */
	struct weightd_mesh *mesh; /* a copy */
	uint32_t n_nodes;
	uint32_t n_ranks; /* of a node: those of its job. Rank r of node i is i * n_ranks + r in the mesh */
	/*
	 * Nodes between which states, and pieces, are divided: all, or where the mesh has a dimension of replicas those of one
	 * of them, which follow each other.
	 */
	uint32_t n_sharing;
	uint32_t sync_every; /* steps between averages of the parameters of all nodes; 0: gradients are summed in each step */
	char strategy[PLAN_STRATEGY_MAX + 1];
	const struct strategy *row;
	enum weightd_optimizer optimizer;
	enum weightd_step_form form; /* fused or two-phase */
	bool overlap;
	bool without_journal;
	bool keeps_units, without_prefetch;
	uint32_t staleness;
	uint32_t n_copies; /* of PARAM */
	uint32_t n_moments; /* ranges of MOMENTS for one element: 2, 1, or 0 */
	uint32_t n_slots; /* of GRAD for each rank: staleness + 1 */
	uint32_t state_size;
	uint64_t bucket_bytes;
	enum weightd_dtype param_dtype, grad_dtype; /* of all trained parameters, and of GRAD */
	bool has_scaling;
	struct weightd_scaling scaling; /* zeros: there is none */

	struct weightd_group *groups;
	uint32_t n_groups;
	struct weightd_train_tensor *tensors; /* names and shapes are the plan's */
	uint32_t n_tensors;
	uint32_t *by_name; /* indexes of tensors, sorted */

	uint64_t n_elements; /* of the flat range, padding included: a multiple of PLAN_CUT */
	uint64_t n_padding; /* elements of it */
	uint64_t buffer_size; /* bytes of the buffers of one rank */
	uint64_t frozen_size; /* bytes of the frozen parameters */
	uint64_t *cuts; /* n_ranks + 1: shard i of the flat range, of rank i of each node, is [cuts[i], cuts[i + 1]) */
	struct plan_run *runs;
	uint32_t n_runs;
	struct plan_interval *buckets; /* in the order of backward: the last tensors first */
	uint32_t n_buckets;
	struct plan_piece *pieces; /* of node i: n_pieces from i * n_pieces on, in order of ranks */
	uint32_t n_pieces; /* of all ranks of a node, empty ones included */
	struct plan_pieces *owned; /* by node * n_ranks + rank: see plan_pieces() */
	struct plan_pieces *updates; /* likewise: see plan_updates() */
	struct plan_piece *whole; /* for `updates` where they are no pieces of `pieces` */
	uint64_t n_received; /* elements of a range of RECEIVED; one node: 0 */
	uint64_t n_state; /* elements of MASTER, or of a moment */
	uint64_t n_bucket; /* of the largest bucket; a fused plan: 0 */
	struct plan_unit *units; /* in the order of the flat range; strategies with units */
	uint32_t n_units;
	struct plan_room *rooms; /* of GATHERED; plan_shards_params() */
	uint32_t n_rooms;
	struct plan_part parts[WEIGHTD_KINDS]; /* in the order of the job's parts; JOURNAL is first */
	uint32_t n_parts;
	struct plan_op *ops;
	uint32_t n_ops;
	uint32_t *exchanges; /* of a step: their places in `ops` */
	uint32_t n_exchanges;
	/*
	 * The first so many are asked for by the caller's passes. `ops` has as many as one forward and one backward ask for, by
	 * unit and by bucket; the order is that of the caller's opens and hand-overs. A step with more passes has more, and
	 * those behind follow them: see exchange_op(). 0: none are
	 */
	uint32_t n_asked;

	void *image; /* binary form, made with the plan */
	uint64_t image_size;
};

/* Pieces of its shard that a rank of a node sums over nodes. One node: its shard. */
const struct plan_pieces *plan_pieces(const struct weightd_plan *p, uint32_t node, uint32_t rank);

/* The piece of a bucket; NULL: it has none. Several nodes that sum gradients. */
const struct plan_piece *plan_piece_of(const struct plan_pieces *pieces, uint32_t bucket);

/*
 * Of a rank of a node: the elements whose parameters, originals and moments it updates. Its pieces, its shard where nodes
 * average parameters or there is one, or the whole range where MOMENTS are replicated.
 */
const struct plan_pieces *plan_updates(const struct weightd_plan *p, uint32_t node, uint32_t rank);

/* The places of all pieces, and those between them. */
static inline struct plan_interval plan_places(const struct plan_pieces *pieces)
{
	const struct plan_piece *first = pieces->pieces, *last = first + pieces->n - 1;

	return (struct plan_interval){first->at,
				      last->at + (last->interval.end - last->interval.begin)};
}

/*
 * The part of the flat range whose parameters a rank of any node writes, of its own or received: its shard, or all of it where
 * MOMENTS are replicated.
 */
struct plan_interval plan_updated(const struct weightd_plan *p, uint32_t rank);

/* The intersection of an interval with a rank's shard; empty: begin == end. */
struct plan_interval plan_owned(const struct weightd_plan *p, uint32_t rank,
				struct plan_interval interval);

/* The operation with an exchange of a step; NULL: there is none with this index. */
const struct plan_op *plan_exchange(const struct weightd_plan *p, uint64_t index);

/*
 * The SCATTER of a bucket during backward, of a plan with overlap whose gradients are summed over nodes. NULL: there is none.
 */
const struct plan_op *plan_scatter(const struct weightd_plan *p, uint32_t bucket);

/* Nodes that are full replicas of each other's: 1, or the first dimension of the mesh. */
static inline uint32_t plan_n_replicas(const struct weightd_plan *p)
{
	return p->n_nodes / p->n_sharing;
}

/* Two nodes are of one replica, and divide pieces between them. */
static inline bool plan_share(const struct weightd_plan *p, uint32_t a, uint32_t b)
{
	return a / p->n_sharing == b / p->n_sharing;
}

/* Two nodes of different replicas have the same pieces. */
static inline bool plan_mirror(const struct weightd_plan *p, uint32_t a, uint32_t b)
{
	return a != b && a % p->n_sharing == b % p->n_sharing;
}

/* The part of a piece that the replica of a node adds up. It may be empty. */
struct plan_piece plan_replica_part(const struct weightd_plan *p, const struct plan_piece *piece,
				    uint32_t node);

/* Gradients are summed over several nodes, in each step. */
static inline bool plan_sums_nodes(const struct weightd_plan *p)
{
	return p->n_nodes > 1 && !p->sync_every;
}

/* GRAD of a rank is one bucket, whose sums begin during backward. */
bool plan_pools_grads(const struct weightd_plan *p);

/* The element that a range of GRAD begins with while it has this bucket. */
static inline uint64_t plan_grad_first(const struct weightd_plan *p, uint32_t bucket)
{
	return plan_pools_grads(p) ? p->buckets[bucket].begin : 0;
}

/* PARAM is sharded over nodes as MASTER and MOMENTS are, and units are gathered. */
bool plan_shards_params(const struct weightd_plan *p);

/* Backward asks for a unit again, as another one was in its room since. */
bool plan_is_fetched_again(const struct weightd_plan *p, uint32_t unit);

/* The exchanges between replicas behind a bucket's SCATTER. NULL: there is one replica. */
const struct plan_op *plan_replicas(const struct weightd_plan *p, uint32_t bucket,
				    enum plan_op_type type);

/* The name of a tensor stands for its unit. */
const char *plan_unit_name(const struct weightd_plan *p, uint32_t unit);
/* The FETCH of a unit. */
const struct plan_op *plan_fetch(const struct weightd_plan *p, uint32_t unit);

static inline uint32_t plan_unit_of_bucket(const struct weightd_plan *p, uint32_t bucket)
{
	return p->n_buckets - 1 - bucket;
}

/* The parameter has a place in the flat range; others are frozen, or are buffers. */
static inline bool plan_is_trained(const struct weightd_train_tensor *t)
{
	return t->role == WEIGHTD_PARAM && !t->frozen;
}

/* Bytes of an element of the flat range in a kind of memory; 0 for kinds that are not of it. */
uint64_t plan_element_size(const struct weightd_plan *p, enum weightd_kind kind);

/* The elements of a trained parameter, without padding. */
struct plan_interval plan_elements(const struct weightd_plan *p,
				   const struct weightd_train_tensor *t);

/* PARAM is the rounding of MASTER. */
bool plan_has_master(const struct weightd_plan *p);

/* The part of a kind, or NULL. */
const struct plan_part *plan_part(const struct weightd_plan *p, enum weightd_kind kind);

/* Each rank updates all of its own copy of PARAM, and of no other. */
bool plan_is_replicated(const struct weightd_plan *p);

/* MASTER and MOMENTS are sharded over nodes, too: each rank has those of its pieces alone. */
bool plan_shards_state(const struct weightd_plan *p);

/* The copy of PARAM that a rank maps. */
uint32_t plan_copy(const struct weightd_plan *p, uint32_t rank);

/* The bucket with an element. */
uint32_t plan_bucket_of(const struct weightd_plan *p, uint64_t element);

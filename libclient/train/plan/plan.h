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

/* An interval of tensors of one parameter group. Runs cover the flat range in order; padding belongs to its left neighbour. */
struct plan_run {
	struct plan_interval interval;
	uint32_t group;
};

/*
 * A part of the job: `n` ranges of `stride` bytes each, of which `used` are in use.
 *	PARAM		n_copies: see plan_copy()
 *	GRAD		n_ranks * n_slots: rank r, slot s at r * n_slots + s
 *	REDUCED		1; two-phase plans
 *	MASTER		as MOMENTS; parameters of 16 bits
 *	MOMENTS		1, or n_ranks where each rank updates everything; moment j of element i at j * n_elements + i
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
	PLAN_REDUCE, /* REDUCED of a bucket: sum over ranks, of the part of its interval that the rank owns */
	PLAN_DECIDE, /* the norm over all shards, and whether to skip */
	PLAN_UPDATE, /* the optimizer on `interval`; from GRAD of all ranks (fused) or from REDUCED */
	PLAN_COMMIT, /* all ranks have updated */
};

/* One operation. The ranges of a rank are its own: plan_owned(). */
struct plan_op {
	enum plan_op_type type;
	uint32_t bucket; /* REDUCE */
	enum weightd_kind from, to; /* kinds read and written */
	enum weightd_placement placement_from,
		placement_to; /* of the value; equal where nothing moves */
	struct plan_interval interval; /* elements of the flat range, of all ranks together */
	enum weightd_kind waits,
		produces; /* kinds with a version to wait for, and to produce; JOURNAL: none */
	uint32_t lag; /* versions that may be missing from what it waits for */
	const char *resource; /* "compute" or "memory" */
};

struct weightd_plan {
	char release[PLAN_RELEASE_MAX + 1]; /* of the library that made it */
	struct weightd_mesh *mesh; /* a copy */
	uint32_t n_ranks; /* on this node: all, for now */
	char strategy[PLAN_STRATEGY_MAX + 1];
	const struct strategy *row;
	enum weightd_optimizer optimizer;
	enum weightd_step_form form; /* fused or two-phase */
	bool overlap;
	bool without_journal;
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
	uint64_t *cuts; /* n_ranks + 1: shard i of the flat range is [cuts[i], cuts[i + 1]) */
	struct plan_run *runs;
	uint32_t n_runs;
	struct plan_interval *buckets; /* in the order of backward: the last tensors first */
	uint32_t n_buckets;
	struct plan_part parts[WEIGHTD_KINDS]; /* in the order of the job's parts; JOURNAL is first */
	uint32_t n_parts;
	struct plan_op *ops;
	uint32_t n_ops;

	void *image; /* binary form, made with the plan */
	uint64_t image_size;
};

/*
 * The part of the flat range whose parameters and moments a rank updates: its shard, or all of it where MOMENTS are
 * replicated.
 */
struct plan_interval plan_updated(const struct weightd_plan *p, uint32_t rank);

/* The intersection of an interval with a rank's shard; empty: begin == end. */
struct plan_interval plan_owned(const struct weightd_plan *p, uint32_t rank,
				struct plan_interval interval);

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

/* The copy of PARAM that a rank maps. */
uint32_t plan_copy(const struct weightd_plan *p, uint32_t rank);

/* The bucket with an element. */
uint32_t plan_bucket_of(const struct weightd_plan *p, uint64_t element);

/*
 * The arena
 *
 * The parts of a job as one rank maps them: PARAM whole and read-only, which the caller's tensors are views of, and a
 * second, writable mapping of the elements that the rank updates; GRAD of all ranks; MASTER, MOMENTS, REDUCED, frozen
 * parameters and the journal.
 * No protection changes during a step.
 *
 * Writable mappings are not inherited by fork(): a child could write while the successor of its dead parent does. It may
 * read PARAM; the gradients of this rank are not mapped in it.
 */
#pragma once

#include "libclient/train/plan/control.h"

struct arena_mapping {
	void *start;
	uint64_t size;
};

struct arena {
	const struct weightd_plan *plan; /* the trainer's */
	struct weightd_job *job; /* owned */
	uint32_t node; /* of the plan's */
	uint32_t rank; /* of the node's */
	struct control_layout layout;
	uint8_t *journal; /* JOURNAL, writable */
	/* This rank's copy, read-only, from element 0 on; with plan_shards_params() that of the node, from place 0 on. */
	const void *param;
	/*
	 * n_copies aliases, writable: element `updated.begin` of each copy; with plan_shards_params() the place of the first of
	 * `updates`. Where plan_is_replicated(), those of other ranks' copies are NULL. All are NULL where the rank updates
	 * nothing.
	 */
	void **params;
	struct plan_interval updated; /* plan_updated() */
	const struct plan_pieces
		*updates; /* plan_updates(): elements, and their places in `master` and `moments` */
	void *const *grads; /* n_ranks * n_slots: GRAD of rank r, slot s at [r * n_slots + s]; others' read-only */
	float *reduced; /* NULL in a fused plan; from element 0 on, with plan_pools_grads() from place 0 on */
	float **received; /* n_nodes: place 0 of the range of each node; NULL: one node */
	float *staged[2]; /* of the buckets b with b % 2; NULL: there is none */
	uint8_t *gathered; /* the rooms of units; NULL: there are none */
	float *master; /* the place of the first of `updates`; NULL: PARAM is its own original */
	float *moments[2]; /* likewise; NULL where there is none */
	const uint8_t *frozen; /* read-only; NULL: no frozen parameters */
	uint8_t *buffers; /* this rank's two slots in BUFFER, buffer_stride apart; NULL: no buffers */
	uint64_t buffer_stride;
	struct arena_mapping *mappings;
	uint32_t n_mappings;
};

/*
 * Joins the job and maps its parts, or fails with a sentence. Names the first difference to the plan of the first rank, and
 * the arithmetic where there is no room.
 */
int arena_open(struct weightd *w, const struct weightd_plan *plan, const char *token, uint32_t node,
	       uint32_t rank, struct arena *ret);
void arena_close(struct arena *a);

/*
 * Maps moments, originals and parameters of another rank, to finish its update, under its lock (weightd_job_hold()).
 * `ret` shares the rest with `a`, which must outlive it. arena_borrow_end() unmaps them.
 */
int arena_borrow(struct arena *a, uint32_t rank, struct arena *ret);
void arena_borrow_end(struct arena *borrowed);

/*
 * The address, writable, of an element in the rank's own copy of PARAM, in REDUCED, or in MASTER where it is not sharded over
 * nodes.
 */
void *arena_element(const struct arena *a, enum weightd_kind kind, uint64_t element);
/* The address, writable, of a place in PARAM of this rank's pieces: plan_shards_params(). */
void *arena_param_at(const struct arena *a, uint64_t place);
/* The sums over the ranks of the node: an element of a bucket. */
float *arena_node_sum(const struct arena *a, uint32_t bucket, uint64_t element);
/* The sums over all nodes, from place 0 on: plan_sums_nodes(). */
float *arena_sums(const struct arena *a);

/* A whole range of a part, writable, for the rank that fills it. NULL, with a sentence: it cannot be mapped. */
void *arena_map_all(struct arena *a, enum weightd_kind kind, uint32_t range);
void arena_unmap_all(struct arena *a, const void *all);

/*
 * Maps bytes of range `range` of a kind, for reading. NULL, with a sentence: they cannot be mapped; also for no bytes.
 * arena_unmap_range() unmaps them.
 */
const void *arena_map_range(struct arena *a, enum weightd_kind kind, uint32_t range,
			    uint64_t offset, uint64_t size);
/* The memory of a part, which the plan has. Owned by the job. */
int arena_fd(const struct arena *a, enum weightd_kind kind);
void arena_unmap_range(struct arena *a, const void *mapped);

struct control_head *arena_head(const struct arena *a);
struct control_rank *arena_rank(const struct arena *a, uint32_t rank);
/* The summary of a step that a node sent to this rank, or is about to send. */
struct control_summary *arena_summary(const struct arena *a, uint64_t step, uint32_t node);
struct control_status *arena_status(const struct arena *a, uint32_t rank);
struct control_bucket *arena_bucket(const struct arena *a, uint32_t rank, uint32_t bucket);
struct control_saved *arena_saved(const struct arena *a, uint32_t rank, uint64_t step);
/* The last FETCH into a room whose parameters a rank does not need any more: it asked for others. */
struct control_word *arena_room(const struct arena *a, uint32_t rank, uint32_t room);
uint8_t *arena_log(const struct arena *a, uint32_t rank);

/*
 * A step
 *
 * The update that a version of the parameters is made by: the scalars and gradients that all ranks agree on once each has
 * handed over its gradients, and the work of one rank in it. All of it is idempotent, and its words say what is done.
 */
#pragma once

#include "libclient/train/optimizer.h"
#include "libclient/train/trainer.h"

struct step {
	struct weightd_train *t;
	uint64_t number;
	uint64_t until; /* the version that the commit waits for: older than the number with staleness */
	bool is_skipped; /* the loss of a rank was not a number */
	bool has_overflowed; /* the gradient is not finite; known after step_decide(), of plans with scaling */
	uint32_t nan_rank; /* the first such rank, of the mesh */
	double max_norm;
	struct journal_step
		update; /* gradients: those of all ranks; after step_decide() of a two-phase plan REDUCED */
};

/*
 * Writes this node's summary of the step, as its rank of the line sends it. All ranks of the node have handed over their
 * gradients.
 */
void step_summarize(const struct arena *a, uint64_t number);
/*
 * Reads what the ranks saved with their gradients; all have handed them over. Rank 0's learning rates count. Where nodes sum
 * gradients, the summaries of all nodes are here, and those of node 0 count. The arena is that of the rank whose part is to be
 * updated.
 */
void step_init(struct step *s, const struct arena *a, uint64_t number);

/* Sums the rank's part of a bucket, unless it is done. */
void step_reduce(struct step *s, const struct arena *a, uint32_t bucket);
/* The elements that nodes exchange in the step, once they have agreed; NULL: all. */
const struct touched *step_touched(const struct step *s);
/*
 * The addresses of a part in an exchange. SCATTER: it is of the receiver's pieces; GATHER: of the sender's. What `source` has
 * stays there until the next exchange is complete.
 */
void *step_source(const struct arena *a, const struct plan_op *op, const struct plan_piece *part);
void *step_target(const struct arena *a, const struct plan_op *op, uint32_t node,
		  const struct plan_piece *part);
/*
 * Sums the rank's own pieces over nodes, in their order, into this node's range of RECEIVED; with sync_every it is the mean.
 * `op` is in the plan.
 */
void step_sum_nodes(struct step *s, const struct plan_op *op);

/* Likewise the rank's piece of a bucket, into REDUCED: plan_pools_grads(), once the bucket's SCATTER is complete. */
void step_sum_bucket_nodes(const struct arena *a, uint32_t bucket);
/*
 * Several replicas: adds up the rank's part of its piece, from REDUCED and RECEIVED into STAGED, once SCATTER_REPLICAS is
 * complete; places it in REDUCED, where those of others are, once GATHER_REPLICAS is.
 */
void step_sum_replicas(const struct arena *a, uint32_t bucket);
void step_place_replicas(const struct arena *a, uint32_t bucket);
/* Copies the rank's own piece of a unit into its room; the FETCH has those of other nodes. */
void step_copy_unit(const struct arena *a, const struct plan_op *op);

/*
 * Publishes the squares of the rank's shard of the mean gradient; its sums are complete. Where nodes sum gradients, writes
 * those of its pieces into the node's summary instead, and step_add_norms() publishes the sum once all are here.
 */
void step_measure(struct step *s, const struct arena *a);
void step_add_norms(struct step *s);
/* The norm of all shards is known: REDUCED, clipped, is the gradient from here on. */
void step_decide(struct step *s);
/* Updates the rank's part. */
void step_update(struct step *s, const struct arena *a);
/*
 * The other nodes' part of the rank's shard is in the range that a GATHER fills: copies it to other copies of PARAM. With
 * sync_every its own part as well, and PARAM becomes the rounding of MASTER.
 */
void step_spread(struct step *s, const struct plan_op *op);
/* The rank's part is done. */
void step_commit(struct step *s, const struct arena *a);

/* The sum of a rank's part of a bucket into REDUCED, from the gradients of `u`. */
void step_sum_bucket(struct weightd_train *t, const struct journal_step *u, const struct arena *a,
		     uint32_t bucket);
/* Weights of a sum before those of all ranks are known. */
void step_weigh_equally(struct journal_step *u, const struct weightd_plan *p);
/* GRAD of all ranks in a step, to be divided by its scale: optimizer_weigh() comes before it. */
void step_set_grads(struct journal_step *u, const struct arena *a, uint64_t number);

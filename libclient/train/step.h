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
	uint32_t nan_rank; /* the first such rank */
	double max_norm;
	struct journal_step
		update; /* gradients: those of all ranks; after step_decide() of a two-phase plan REDUCED */
};

/*
 * Reads what the ranks saved with their gradients; all have handed them over. Rank 0's learning rates count. The arena is
 * that of the rank whose part is to be updated.
 */
void step_init(struct step *s, const struct arena *a, uint64_t number);

/* Sums the rank's part of a bucket, unless it is done. */
void step_reduce(struct step *s, const struct arena *a, uint32_t bucket);
/* Publishes the squares of the rank's shard of the mean gradient; its sums are complete. */
void step_measure(struct step *s, const struct arena *a);
/* The norm of all shards is known: REDUCED, clipped, is the gradient from here on. */
void step_decide(struct step *s);
/* Updates the rank's part. */
void step_update(struct step *s, const struct arena *a);
/* The rank's part is done. */
void step_commit(struct step *s, const struct arena *a);

/* The sum of a rank's part of a bucket into REDUCED, from the gradients of `u`. */
void step_sum_bucket(struct weightd_train *t, const struct journal_step *u, const struct arena *a,
		     uint32_t bucket);
/* GRAD of all ranks in a step, to be divided by its scale: optimizer_weigh() comes before it. */
void step_set_grads(struct journal_step *u, const struct arena *a, uint64_t number);

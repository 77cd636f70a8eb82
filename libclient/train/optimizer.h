/*
 * The optimizer
 *
 * Input of the blocks of one step: the scalars of each parameter group, computed in double and rounded once, as torch's
 * fused optimizers do, and the source of the gradients.
 */
#pragma once

#include "libclient/train/kernels/kernel.h"
#include "libclient/train/plan/plan.h"
#include "libclient/train/touched.h"

struct journal_step {
	const struct kernels *kernels;
	bool is_sgd;
	union {
		struct kernel_adam adam;
		struct kernel_sgd sgd;
	} groups[PLAN_GROUPS_MAX];
	/*
	 * Gradients from element 0 of the flat range on: GRAD of each rank, or REDUCED. `by_place`: from place 0 on, of the
	 * sums over nodes in RECEIVED.
	 */
	const void *grads[KERNEL_RANKS_MAX];
	bool by_place;
	enum kernel_type grad_type;
	float weights[KERNEL_RANKS_MAX];
	bool is_weighted;
	uint32_t n_grads;
	float scale;
	const struct touched *touched; /* the elements that the step changes; NULL: all */
};

/*
 * Sets kernels and groups, for the learning rates `lr` of each group. `n_updates` counts the updates from the first one on,
 * this one included: the bias correction depends on it.
 */
void optimizer_begin(struct journal_step *s, const struct weightd_plan *plan, const double *lr,
		     uint64_t n_updates);

/* The kernels' name of an element type of PARAM or GRAD. */
enum kernel_type optimizer_type(enum weightd_dtype dtype);

/* Updates a range of one group: `s->grads` from element, or place, `first` on, `n` elements of `state`. */
void optimizer_run(const struct journal_step *s, uint32_t group, uint64_t first,
		   const struct kernel_state *state, size_t n);

/*
 * Sets how gradients of n_all ranks become the mean: equal weights scale the sum by 1 / n_all, others multiply each gradient
 * with its part of the weights. All 0 is equal. The gradients here are those of `n` ranks from `first` on.
 */
void optimizer_weigh(struct journal_step *s, const double *weights, uint32_t n_all, uint32_t first,
		     uint32_t n);

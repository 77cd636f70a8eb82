/*
 * Steps of making a plan. Each completes a plan that the steps above it made, and leaves what it has to plan_free.
 */
#pragma once

#include "libclient/train/plan/plan.h"

/*
 * weightd_plan_new() for a plan of that release: parsers make plans of others. The structs have the sizes
 * of this library's.
 */
int build_plan(const struct weightd_train_tensor *tensors, uint32_t n_tensors,
	       const struct weightd_plan_options *options, const char *release,
	       struct weightd_plan **ret);

/* Tensors: copies of them, their places in the flat range, in BUFFER and in FROZEN, and the types of PARAM and GRAD. */
int build_tensors(struct weightd_plan *p, const struct weightd_train_tensor *tensors, uint32_t n,
		  enum weightd_dtype grad_dtype);
/* Units, of strategies that have them, and their rooms. */
int build_units(struct weightd_plan *p);
/* Intervals of the flat range: shards, runs, buckets. */
int build_intervals(struct weightd_plan *p);
/* The pieces of shards that nodes own. */
int build_pieces(struct weightd_plan *p);
/* Parts of the job. */
void build_parts(struct weightd_plan *p);
/* Operations of a step. */
int build_ops(struct weightd_plan *p);
/* The binary form. */
int build_image(struct weightd_plan *p);

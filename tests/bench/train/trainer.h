/*
 * A trainer of matrices and vectors, as the programs of this folder have it
 */
#pragma once

#include <weightd-train.h>

struct trainer {
	struct weightd *w;
	struct weightd_plan *plan;
	struct weightd_train *train;
};

struct trainer_options {
	uint32_t rank, n_ranks;
	uint64_t n_elements; /* of all parameters */
	bool without_journal;
	bool is_bf16; /* the parameters and gradients; else fp32 */
};

/* The plan: "shared", AdamW, fused. */
struct weightd_plan *trainer_plan(const struct trainer_options *o);
/* Opens the job of $WEIGHTD_JOB. In a new one, gradients and parameters get values. Fails the program. */
struct trainer trainer_open(const struct trainer_options *o);
/* One step. Fails the program. */
void trainer_step(const struct trainer *t);

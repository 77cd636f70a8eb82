/*
 * The handover
 *
 * Gradients of this rank that others may read. A fused plan hands over all of GRAD with the word of the step; a two-phase
 * plan hands over each bucket once its last tensor is complete, and never a second time: its sum may have been made.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct weightd_train;

struct handover {
	uint64_t step; /* the rest is about this one */
	bool *is_ready; /* n_tensors */
	uint32_t *n_missing; /* tensors of each bucket */
	uint32_t n_opened, n_complete; /* buckets, in their order; plans that pool gradients */
};

int handover_init(struct weightd_train *t);
void handover_deinit(struct weightd_train *t);

/* The bucket may be written now: it is open, and was not handed over before this process was started anew. */
bool handover_is_open(const struct weightd_train *t, uint32_t bucket);
/* -EINVAL with a sentence: a bucket of a plan that pools gradients was not handed over in this step. */
int handover_check(const struct weightd_train *t);
/* Hands over all buckets that are left. */
void handover_complete(struct weightd_train *t, uint64_t step);

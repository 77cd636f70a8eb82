/*
 * Plans
 *
 * What the next epochs of a sync are going to send, over which links, told before they do.
 */
#pragma once

#include "server/sync/coordinator/joint.h"
#include "server/sync/coordinator/transaction.h"

struct plan {
	json_t *links;
	bool has_patch;
	uint64_t bytes; /* that leave this node */
	uint64_t total; /* over all links */
	uint64_t planned; /* the same with what engines add */
	double takes_ns; /* too many: unknown */
};

/* The chain and the ranges that were chosen for an epoch. */
void plan_add(const struct agent *a, const struct transaction *t, struct plan *p);
void plan_deinit(struct plan *p);
/* Tells the event "plan" of all that was added, and empties it. */
void plan_tell(struct agent *a, const struct transaction *t, struct plan *p);
/* The same of a joint sync. */
void plan_tell_joint(struct agent *a, const struct joint *j);

/*
 * Traffic plans
 *
 * What the next epochs of a sync are going to send, over which links, told before they do.
 */
#pragma once

#include "server/sync/coordinator/broadcast.h"
#include "server/sync/coordinator/collective.h"

struct traffic_plan {
	json_t *links;
	bool has_patch;
	uint64_t bytes; /* that leave this node */
	uint64_t total; /* over all links */
	uint64_t planned; /* the same with what engines add */
	double takes_ns; /* too many: unknown */
};

/* The chain and the ranges that were chosen for an epoch. */
void traffic_plan_add(const struct agent *a, const struct broadcast *b, struct traffic_plan *p);
void traffic_plan_deinit(struct traffic_plan *p);
/* Tells the event "plan" of all that was added, and empties it. */
void traffic_plan_tell(struct agent *a, const struct broadcast *b, struct traffic_plan *p);
/* The same of a collective. */
void traffic_plan_tell_collective(struct agent *a, const struct collective *c);

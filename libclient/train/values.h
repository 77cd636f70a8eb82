/*
 * Values of jobs that pool gradients, on several nodes
 *
 * No node has room for the originals of another one. Rank 0 of node 0 has those of all parameters in private memory, from the
 * exchange before the caller gives values on until all nodes have them, and rank 0 of each node writes those of all ranks of
 * its node. Ranges of the job are mapped writable as a whole during an exchange alone.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "libclient/train/plan/plan.h"

struct weightd_train;

struct values {
	float *flat; /* of the flat range, on node 0; NULL: not in use */
	/* The first range of each part, with what all ranks of the node have, during an exchange; NULL: there is none. */
	uint8_t *param;
	float *master;
	uint8_t *frozen;
};

/* The job has such values. */
bool values_are_pooled(const struct weightd_plan *p);

/* Makes the private memory, of zeros, unless it is there. -ENOMEM with a sentence. */
int values_allocate(struct weightd_train *t);
void values_free(struct weightd_train *t);

/* Maps the ranges. A failure leaves what it has mapped to values_close(). */
int values_open(struct weightd_train *t);
void values_close(struct weightd_train *t);

/*
 * The original at a place of the node; NULL: it has all originals in PARAM, whose places are elements. The ranges are mapped.
 */
float *values_original(const struct weightd_train *t, uint64_t place);

/* Node 0: copies what the node has of its own into the private memory. */
void values_collect(struct weightd_train *t);
/* Node 0: copies it back, into all ranges that have it. */
int values_place(struct weightd_train *t);
/* Other nodes: copies what was received into the ranges that have it besides. */
int values_spread(struct weightd_train *t);

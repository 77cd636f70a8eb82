/*
 * Snapshots
 *
 * A copy of the state that a rank writes to a checkpoint, made between two steps: no rank updates before this one hands over
 * its next gradients. It takes the bytes of the rank's tensors once for PARAM, and once for each state of the optimizer.
 *
 * With several nodes, rank i of node 0 writes the tensors, and the ranks i of the others copy what their nodes have of them:
 * see save/collect.h.
 */
#pragma once

#include <stdint.h>

#include "libclient/train/plan/control.h"
#include "libclient/train/save/checkpoint.h"

struct weightd_train;

/* The part of one rank of the mesh. */
struct snapshot_rank {
	uint8_t *buffers; /* NULL: none */
	void *state; /* the caller's */
	uint64_t state_size;
};

struct snapshot {
	struct plan_interval
		owned; /* elements of the flat range, of the tensors that rank i of node 0 writes */
	uint64_t step, n_skipped;
	struct control_scale scale; /* of the loss; plans with scaling */
	uint8_t *memory; /* all of it */
	uint64_t size;
	/*
	 * PARAM, and states as checkpoint_state() has them; NULL: fewer. Of owned; on nodes other than 0 only what the node has
	 * of it alone, part by part: spread_of_node().
	 */
	uint8_t *param;
	float *states[CHECKPOINT_STATES_MAX];
	struct snapshot_rank ranks[WEIGHTD_NODES_MAX]; /* by node; but on node 0 this one's alone */
};

/* On node 0 there is room for what the other nodes have. -ENOMEM, with a sentence. */
int snapshot_take(struct weightd_train *t, struct snapshot *ret);
void snapshot_free(struct snapshot *s);

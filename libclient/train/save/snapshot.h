/*
 * Snapshots
 *
 * A copy of the state that a rank writes to a checkpoint, made between two steps: no rank updates before this one hands over
 * its next gradients. It takes the bytes of the rank's tensors once for PARAM, and once for each state of the optimizer.
 */
#pragma once

#include <stdint.h>

#include "libclient/train/plan/control.h"
#include "libclient/train/save/checkpoint.h"

struct weightd_train;

struct snapshot {
	struct plan_interval owned; /* elements of the flat range */
	uint64_t step, n_skipped;
	struct control_scale scale; /* of the loss; plans with scaling */
	uint8_t *memory; /* all of it */
	uint64_t size;
	const uint8_t *param; /* of owned */
	const float *states[CHECKPOINT_STATES_MAX]; /* as checkpoint_state() has them; NULL: fewer */
	const uint8_t *buffers; /* of this rank; NULL: none */
	const void *state; /* the caller's */
	uint64_t state_size;
};

/* -ENOMEM, with a sentence. */
int snapshot_take(struct weightd_train *t, struct snapshot *ret);
void snapshot_free(struct snapshot *s);

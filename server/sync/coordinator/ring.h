/*
 * Rings
 *
 * Epochs of a push in which NCCL brings the bytes, from the memory of this node's GPU to that of the members': they take
 * part in one communicator instead of a chain of links, and nobody's host memory has the bytes. What rings that broke
 * did not bring, and what one brought wrong, goes down the chain: the leaves of that through host memory.
 */
#pragma once

#include "server/sync/coordinator/transaction.h"
#include "server/sync/state/transport.h"

/* Whether a push to this group begins with them. */
bool ring_is_wanted(const struct agent *a, const struct group *g);
/* What carries the next epoch. */
const struct transport *ring_choose(const struct agent *a, const struct transaction *t);
/* Bytes that engines of the next ring move at a time. */
uint64_t ring_chunk(const struct agent *a, const struct transaction *t);
/* All have opened: tells everybody who takes part. */
void ring_start(struct agent *a, struct transaction *t);

/* Whether an epoch is none, though there are rings: what it carries has to be staged. */
static inline bool ring_is_staged(const struct transaction *t)
{
	return t->ring.is_wanted && !t->transport->is_ring;
}

/* How long members may take to open, and to move anything once they did, in an epoch of either kind. */
uint64_t ring_time_to_open(const struct agent *a, const struct transaction *t);
uint64_t ring_patience(const struct agent *a, const struct transaction *t);

/* Has the source job stage what the epoch carries, as it is not a ring; epoch_open_ours() follows. */
void ring_stage(struct agent *a, struct transaction *t);
/* It did. */
void ring_on_staged(struct agent *a, struct transaction *t, int *fds, unsigned n_fds);

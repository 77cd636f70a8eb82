/*
 * NCCL epochs
 *
 * Epochs of a push in which NCCL brings the bytes, from the memory of this node's GPU to that of the members': they take
 * part in one communicator instead of a chain of links, and nobody's host memory has the bytes. What rings that broke
 * did not bring, and what one brought wrong, goes down the chain: the leaves of that through host memory.
 */
#pragma once

#include "server/sync/coordinator/broadcast.h"
#include "server/sync/state/transport.h"

/* Returns whether a push to this group begins with them. */
bool nccl_epoch_is_wanted(const struct agent *a, const struct group *g);
/* The transport of the next epoch. */
const struct transport *nccl_epoch_choose(const struct agent *a, const struct broadcast *b);
/* Bytes that engines of the next ring move at a time. */
uint64_t nccl_epoch_chunk(const struct agent *a, const struct broadcast *b);
/* All have opened: sends each member its rank and the addresses of all that take part. */
void nccl_epoch_start(struct agent *a, struct broadcast *b);

/* Returns whether an epoch is none, though there are rings: what it carries has to be staged. */
static inline bool nccl_epoch_is_staged(const struct broadcast *b)
{
	return b->nccl.is_wanted && !b->transport->is_nccl;
}

/*
 * Returns how long members may take to open, and to move anything once they did, in an epoch of
 * either kind.
 */
uint64_t nccl_epoch_time_to_open(const struct agent *a, const struct broadcast *b);
uint64_t nccl_epoch_patience(const struct agent *a, const struct broadcast *b);

/* Has the source job stage what the epoch carries, as it is not a ring; chain_epoch_open_ours() follows. */
void nccl_epoch_stage(struct agent *a, struct broadcast *b);
/* It did. */
void nccl_epoch_on_staged(struct agent *a, struct broadcast *b, int *fds, unsigned n_fds);

/*
 * Retries
 *
 * What is remembered of attempts to get a version from peers: when to try again, and whom to ask last.
 */
#pragma once

#include "server/sync/state/replica.h"

#define RETRY_VAIN_STEP 4 /* as bad as so many answers that it is busy */

/* Something came to nothing: a while, longer each time, before the next attempt. */
void retry_later(struct agent *a, struct replica *rep);
/* The request to this peer came to nothing: others are asked before it is asked again. */
void retry_in_vain(struct agent *a, struct replica *rep, unsigned peer);
/* The same, weighed: RETRY_VAIN_STEP, or 1 of a peer that was only busy. */
void retry_note_vain(struct agent *a, struct replica *rep, unsigned peer, unsigned weight);
void retry_kept_word(struct agent *a, struct replica *rep, unsigned peer);
/*
 * Returns whether it was asked for it; from now on it was not, as one invitation is for one
 * PREPARE.
 */
bool retry_take_invitation(struct agent *a, struct replica *rep, unsigned peer);
/* Returns how long whom we ask may take over anything but bytes. */
uint64_t retry_patience(const struct agent *a);

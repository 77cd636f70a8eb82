/*
 * Retries
 *
 * The failed attempts to get a version from peers: they determine when to try again, and which peer
 * to ask last.
 */
#pragma once

#include "server/sync/state/replica.h"

#define RETRY_VAIN_STEP 4 /* counts as this many answers that it is busy */

/* An attempt failed: waits before the next one, longer each time. */
void retry_later(struct agent *a, struct replica *rep);
/* This peer did not deliver: others are asked before it is asked again. */
void retry_in_vain(struct agent *a, struct replica *rep, unsigned peer);
/* The same, weighted: RETRY_VAIN_STEP, or 1 for a peer that was only busy. */
void retry_note_vain(struct agent *a, struct replica *rep, unsigned peer, unsigned weight);
void retry_kept_word(struct agent *a, struct replica *rep, unsigned peer);
/* Returns true if the peer was invited, and clears that: an invitation is for one PREPARE. */
bool retry_take_invitation(struct agent *a, struct replica *rep, unsigned peer);
/* Time limit of any step of the asked peer except moving bytes. */
uint64_t retry_patience(const struct agent *a);

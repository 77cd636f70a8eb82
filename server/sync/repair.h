/*
 * Repair
 *
 * How a node that lacks a committed version comes to it: it looks whether it has the bytes after all, and asks
 * one that has them.
 */
#pragma once

#include "server/sync/state/replica.h"

/*
 * Returns whether anything should be looked at or asked for now, and when to come again; 0: there
 * is no need.
 */
uint64_t repair_step(struct agent *a, uint64_t now);

/* The local weightd may have it, after all or no more: that is looked at before anybody is asked for it. */
void repair_look_again(struct agent *a, struct replica *rep);

/* Serves those that wait, oldest first, as many as may be served at a time. */
void repair_serve_next(struct agent *a);
/* Divides the rate limit of repairs among those that move bytes. */
void repair_share_rate(struct agent *a);
/* A peer's, or all, that wait. */
void repair_forget(struct agent *a, unsigned peer_or_none);

void repair_on_catch_up(struct agent *a, unsigned peer, const json_t *message);
void repair_on_refused(struct agent *a, unsigned peer, const json_t *message);
/*
 * A peer sent a version that its publisher did not sign: if the peer was asked for it, others are
 * asked first next time.
 */
void repair_on_worthless(struct agent *a, unsigned peer, const char *buffer);
void repair_on_peer_down(struct agent *a, unsigned peer);

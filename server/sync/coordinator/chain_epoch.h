/*
 * Chain epochs
 *
 * One attempt to get bytes along the chain of those that lack some. When any part of it breaks, all of it
 * is stopped and the next one carries what is still missing, in an order that has learnt from the last.
 */
#pragma once

#include "server/sync/coordinator/broadcast.h"

/* Begins the next one, if anybody lacks anything: 0 nobody does, 1 it began. Or the broadcast failed: -1. */
int chain_epoch_begin(struct agent *a, struct broadcast *b);
/* Only tells what it would send. Or the broadcast failed: -1. */
int chain_epoch_plan(struct agent *a, struct broadcast *b);
/* All have opened. */
void chain_epoch_start(struct agent *a, struct broadcast *b);
/* Once the bytes are staged. */
int chain_epoch_open_ours(struct agent *a, struct broadcast *b);
/* It broke. */
void chain_epoch_stop(struct agent *a, struct broadcast *b);
/* Ends it early, if the policy lets others not wait for a slow member. That one gets the rest in the next epoch. */
void chain_epoch_leave_slow(struct agent *a, struct broadcast *b);

void chain_epoch_on_opened(struct agent *a, struct sync *s, struct member *m, const json_t *message);
void chain_epoch_on_progress(struct agent *a, struct sync *s, struct member *m,
			     const json_t *message);
void chain_epoch_on_done(struct agent *a, struct sync *s, struct member *m, const json_t *message);
void chain_epoch_on_broken(struct agent *a, struct sync *s, struct member *m, const json_t *message);
void chain_epoch_on_stopped(struct agent *a, struct sync *s, struct member *m,
			    const json_t *message);

/*
 * Epochs
 *
 * One attempt to get bytes along the chain of those that lack some. When any part of it breaks, all of it
 * is stopped and the next one carries what is still missing, in an order that has learnt from the last.
 */
#pragma once

#include "server/sync/coordinator/transaction.h"

#define EPOCH_RANGES_MAX 1024 /* of one epoch, so that an engine is told in one packet */

/* Begins the next one, if anybody lacks anything: 0 nobody does, 1 it began. Or the transaction failed: -1. */
int epoch_begin(struct agent *a, struct transaction *t);
/* Only tells what it would send. Or the transaction failed: -1. */
int epoch_plan(struct agent *a, struct transaction *t);
/* All have opened. */
void epoch_start(struct agent *a, struct transaction *t);
/* Once the bytes are staged. */
int epoch_open_ours(struct agent *a, struct transaction *t);
/* It broke. */
void epoch_stop(struct agent *a, struct transaction *t);
/* Ends it early, if the policy has others not wait for who holds them up: that one gets the rest in the next. */
void epoch_leave_slow(struct agent *a, struct transaction *t);

void epoch_on_opened(struct agent *a, struct sync *s, struct member *m, const json_t *message);
void epoch_on_progress(struct agent *a, struct sync *s, struct member *m, const json_t *message);
void epoch_on_done(struct agent *a, struct sync *s, struct member *m, const json_t *message);
void epoch_on_broken(struct agent *a, struct sync *s, struct member *m, const json_t *message);
void epoch_on_stopped(struct agent *a, struct sync *s, struct member *m, const json_t *message);

/* The one before it in the chain; NULL: this node, or it is in none. */
struct member *epoch_before(const struct transaction *t, const struct member *m);

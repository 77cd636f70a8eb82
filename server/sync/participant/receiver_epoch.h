/*
 * Receiver epochs
 *
 * What this node, as a member of a sync, does in one epoch of it.
 */
#pragma once

#include "server/sync/participant/receiver.h"

/* The sink has staged what it was asked to. */
void receiver_epoch_on_staged(struct agent *a, struct receiver *rec, int *fds, unsigned n_fds);

/* Messages of its coordinator. */
void receiver_epoch_on_open(struct agent *a, struct participant *p, const json_t *message);
void receiver_epoch_on_start(struct agent *a, struct participant *p, const json_t *message);
void receiver_epoch_on_stop(struct agent *a, struct participant *p, const json_t *message);

/* And its engine, or what becomes of that. */
void receiver_epoch_on_opened(struct agent *a, struct participant *p, const json_t *message);
void receiver_epoch_on_done(struct agent *a, struct participant *p, const json_t *message);
void receiver_epoch_on_broken(struct agent *a, struct participant *p, const json_t *message);
void receiver_epoch_on_engine_end(struct agent *a, struct participant *p, const char *why);
void receiver_epoch_on_stalled(struct agent *a, struct participant *p, const char *why);

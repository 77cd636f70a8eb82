/*
 * Legs
 *
 * What this node, as a member of a sync, does in one epoch of it.
 */
#pragma once

#include "server/sync/participant/party.h"

/* The sink has staged what it was asked to. */
void leg_on_staged(struct agent *a, struct party *p, int *fds, unsigned n_fds);

/* What its coordinator says. */
void leg_on_open(struct agent *a, struct duty *d, const json_t *message);
void leg_on_start(struct agent *a, struct duty *d, const json_t *message);
void leg_on_stop(struct agent *a, struct duty *d, const json_t *message);

/* And its engine, or what becomes of that. */
void leg_on_opened(struct agent *a, struct duty *d, const json_t *message);
void leg_on_done(struct agent *a, struct duty *d, const json_t *message);
void leg_on_broken(struct agent *a, struct duty *d, const json_t *message);
void leg_on_engine_end(struct agent *a, struct duty *d, const char *why);
void leg_on_stalled(struct agent *a, struct duty *d, const char *why);

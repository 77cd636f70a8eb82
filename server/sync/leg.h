/*
 * Legs
 *
 * What this node, as a member of a sync, does in one epoch of it.
 */
#pragma once

#include "server/sync/party.h"

/* What its coordinator says. */
void leg_on_open(struct agent *a, struct party *p, const json_t *message);
void leg_on_start(struct agent *a, struct party *p, const json_t *message);
void leg_on_stop(struct agent *a, struct party *p, const json_t *message);

/* Whether an engine runs. */
bool leg_is_under_way(const struct party *p);

/* It broke after `done` bytes: at a link from one node to another, where they are known. */
void leg_break(struct agent *a, struct party *p, uint64_t done, const char *from, const char *to,
	       const char *why);

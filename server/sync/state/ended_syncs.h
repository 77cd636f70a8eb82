/*
 * Ended syncs
 *
 * What is kept of the last syncs that ended here: a row of each, and the rows of the nodes of the youngest.
 */
#pragma once

#include "server/sync/state/agent_state.h"

#define ENDED_SYNCS_MAX 256

/* Steals both. The commit log does not have it, yet. */
void ended_syncs_add(struct agent *a, json_t *row, json_t *nodes);
/* Adds what weightd-trace saw arrive in one of them. Of one that nobody remembers, nothing. */
void ended_syncs_amend(struct agent *a, enum metrics_role role, const char *sync, uint64_t n_bytes);

/*
 * An array of the last `n` rows, oldest first, for the commit log. Reading ignores anything else
 * than such rows.
 */
json_t *ended_syncs_to_json(const struct agent *a, size_t n);
void ended_syncs_load(struct agent *a, const json_t *rows);

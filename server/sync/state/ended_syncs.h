/*
 * Ended syncs
 *
 * A row of each of the last syncs that ended here, and the rows of the nodes of the newest.
 */
#pragma once

#include "server/sync/state/agent_state.h"

#define ENDED_SYNCS_MAX 256

/* Steals both. The commit log does not have it yet. */
void ended_syncs_add(struct agent *a, json_t *row, json_t *nodes);
/* Adds weightd-trace's count of received bytes to one of them. Ignores forgotten ones. */
void ended_syncs_amend(struct agent *a, enum metrics_role role, const char *sync, uint64_t n_bytes);

/*
 * The commit log's form: an array of the last `n` rows, oldest first. Invalid rows are skipped when
 * it is read.
 */
json_t *ended_syncs_to_json(const struct agent *a, size_t n);
void ended_syncs_load(struct agent *a, const json_t *rows);

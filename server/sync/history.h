/*
 * History
 *
 * What people see of syncs: rows of those under way, the events of their steps, and what became of the last.
 */
#pragma once

#include "server/sync/coordinator/sync.h"
#include "server/sync/participant/participant.h"

void history_member_event(struct agent *a, const struct sync *s, const struct member *m);
/* Sent once, like the event of its end: the sync is committed, and continues for late members. */
void history_sync_left(struct agent *a, struct sync *s);
void history_sync_end(struct agent *a, const struct sync *s, bool committed);
/*
 * Adds bytes that weightd-trace saw arrive in this sync, which may be over: here, as a member, or
 * at a member of what this node coordinates. Of one that nobody remembers, nothing.
 */
void history_traced(struct agent *a, enum metrics_role role, const char *sync, uint64_t n_bytes);
void history_participant_event(struct agent *a, const struct participant *p);
void history_participant_end(struct agent *a, const struct participant *p);

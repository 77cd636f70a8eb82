/*
 * Pulls
 *
 * A user's request for the version of one node. It is a repair (repair.h) that asks no other node, fetches a version that was
 * dropped here too, and ends with the first refusal. So all that protects a repair protects it: the groups of both nodes,
 * the signature of the publisher, the order of versions, and the root over this node's own memory.
 */
#pragma once

#include "server/sync/participant/participant.h"

/* As agent_pull(). */
int pull_begin(struct agent *a, const json_t *request, char ret_id[SYNC_ID_SIZE],
	       char why[WHY_SIZE]);
/* -ENOENT without a sentence: there is no such pull; -EALREADY with one. */
int pull_cancel(struct agent *a, const char *id, char why[WHY_SIZE]);

/* Ends those with a version that is served. */
void pull_step(struct agent *a);

/* All of these do nothing without a pull. */
void pull_fail(struct agent *a, struct replica *rep, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* The peer refuses it, or is refused. */
void pull_on_refused(struct agent *a, struct replica *rep, unsigned peer, const char *why);
/* No peer can be asked. */
void pull_on_nobody(struct agent *a, struct replica *rep);
/* After its event, which the pull has as its own end. */
void pull_on_participant_end(const struct participant *p);

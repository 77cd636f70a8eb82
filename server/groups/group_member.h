/*
 * Members of a writer group
 *
 * A session that is a rank of a group, for as long as its connection lasts. Several sessions can be the same rank:
 * one of a process that is ending, and one of the process that replaces it. The ranks distinguish them by record
 * locks, which weightd does not need.
 */
#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "ipc/base/list.h"
#include "server/state/audit.h"

struct session;
struct writer_group;

struct group_member {
	struct list link; /* writer_group::members */
	struct list session_link; /* session::members */
	struct writer_group *group;
	struct session *session;
	uint32_t rank;
};

/* Adds one and ends the linger time; the caller saves the group. NULL: out of memory. */
struct group_member *group_member_new(struct writer_group *g, struct session *s, uint32_t rank);

/* Ends it; the caller settles and saves the group. NULL. */
struct group_member *group_member_free(struct group_member *m);

/* Audits that it joined or left. */
void group_member_audit(const struct group_member *m, enum audit_action action);

/* At the end of its session. The group stays, and lingers. */
void group_member_lose(struct group_member *m);

/* NULL: the session is no member of that group. */
struct group_member *group_member_of(const struct session *s, const struct writer_group *g);

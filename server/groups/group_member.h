/*
 * Members of a writer group
 *
 * A session that is one rank of a group, for as long as its connection lasts. Several may be the same rank: which
 * process is, the clients settle by a lock in the kernel.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "ipc/base/list.h"

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

/* At the end of its session. The group may be removed in it. */
void group_member_lose(struct group_member *m);

/* NULL: the session is no member of that group. */
struct group_member *group_member_of(const struct session *s, const struct writer_group *g);

/* Ends the members that are a rank and whose process has ended. */
void group_member_replace(struct writer_group *g, uint32_t rank);

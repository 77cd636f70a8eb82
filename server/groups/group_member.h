/*
 * Members of a writer group
 *
 * A session that is one rank of a group, for as long as its connection lasts.
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

/* NULL: no member is that rank; the session is no member of that group. */
struct group_member *group_member_find(const struct writer_group *g, uint32_t rank);
struct group_member *group_member_of(const struct session *s, const struct writer_group *g);

/* True if the rank's connection or process has ended, or if this session is of the same process. */
bool group_member_yields(const struct group_member *m, const struct session *s);

/*
 * Access
 *
 * A buffer has uid, gid and permission bits like a file: r attaches, w writes, the owner and root
 * remove. What root may, who the server runs as may too, and so may the administrators: the members of
 * one group. The overflow uid stands for every user this user namespace cannot name: it never owns. Nor has
 * the overflow gid members.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "ipc/channel.h"

#define ACCESS_READ 4u
#define ACCESS_WRITE 2u

struct access {
	uid_t uid;
	gid_t gid;
	mode_t mode; /* permission bits */
};

bool access_allows(const struct access *a, const struct channel_peer *peer, unsigned want);
bool access_owns(const struct access *a, const struct channel_peer *peer);

/* Whose members are administrators from now on; -1: nobody. */
void access_set_admins(gid_t gid);

/* Root, who the server runs as, or an administrator. */
bool access_is_admin(const struct channel_peer *peer);

/* False for the overflow uid, unless that is who the server itself is. */
bool access_may_own(const struct channel_peer *peer);

bool access_in_group(const struct channel_peer *peer, gid_t gid);

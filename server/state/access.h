/*
 * Access
 *
 * A buffer has uid, gid and permission bits like a file: r attaches, w writes, the owner and root
 * remove. The user that weightd runs as has the rights of root, and so have administrators, the
 * members of one group. The overflow uid stands for all users that this user namespace cannot name:
 * it never owns a buffer, and the overflow gid has no members.
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

/* Sets the group of the administrators; -1: none. */
void access_set_admins(gid_t gid);

/* True for root, the user that weightd runs as, and administrators. */
bool access_is_admin(const struct channel_peer *peer);

/* False for the overflow uid, unless weightd itself runs as it. */
bool access_may_own(const struct channel_peer *peer);

bool access_in_group(const struct channel_peer *peer, gid_t gid);

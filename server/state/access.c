#include "server/state/access.h"

#include <unistd.h>

#define OVERFLOW_UID 65534u
#define OVERFLOW_GID 65534u

static gid_t admin_gid = (gid_t)-1; /* configuration; the loop's */

bool access_in_group(const struct channel_peer *peer, gid_t gid)
{
	if (gid == OVERFLOW_GID)
		return false;
	if (peer->gid == gid)
		return true;
	for (unsigned i = 0; i < peer->n_groups; i++)
		if (peer->groups[i] == gid)
			return true;
	return false;
}

void access_set_admins(gid_t gid)
{
	admin_gid = gid;
}

bool access_is_admin(const struct channel_peer *peer)
{
	if (peer->uid == 0 || peer->uid == geteuid())
		return true;
	return admin_gid != (gid_t)-1 && access_may_own(peer) && access_in_group(peer, admin_gid);
}

bool access_may_own(const struct channel_peer *peer)
{
	return peer->uid != OVERFLOW_UID || geteuid() == OVERFLOW_UID;
}

bool access_allows(const struct access *a, const struct channel_peer *peer, unsigned want)
{
	unsigned bits = a->mode & 7;

	if (access_is_admin(peer))
		return true;
	if (access_may_own(peer)) {
		if (peer->uid == a->uid)
			bits = a->mode >> 6 & 7;
		else if (access_in_group(peer, a->gid))
			bits = a->mode >> 3 & 7;
	}
	return (bits & want) == want;
}

bool access_owns(const struct access *a, const struct channel_peer *peer)
{
	return access_is_admin(peer) || (access_may_own(peer) && peer->uid == a->uid);
}

#include "server/sync/operators.h"

#include <errno.h>
#include <grp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"

#define OVERFLOW_GID 65534u /* whoever a user namespace does not know */
#define RECORD_SIZE_MAX (16 * MIB) /* all members are in it */

/* 0, or an errno: ENOENT for none, ERANGE when the record has no room. */
static int look_up(const char *name, char *room, size_t size, gid_t *ret)
{
	struct group record, *found;
	int r = getgrnam_r(name, &record, room, size, &found);

	if (r == 0 && found)
		*ret = found->gr_gid;
	return r ? r : found ? 0 : ENOENT;
}

int operators_find(const char *name, gid_t *ret)
{
	size_t n = strspn(name, "0123456789");
	int r = ERANGE;

	if (n > 0 && n < 10 && !name[n]) {
		*ret = (gid_t)strtoul(name, NULL, 10);
		return 0;
	}
	for (size_t size = 4 * KIB; r == ERANGE && size <= RECORD_SIZE_MAX; size *= 4) {
		cleanup(freep) char *room = malloc(size);

		r = room ? look_up(name, room, size, ret) : ENOMEM;
	}
	return r ? -ENOENT : 0;
}

bool operators_have(gid_t gid, const struct channel_peer *peer)
{
	if (peer->uid == 0 || peer->uid == geteuid())
		return true;
	if (gid == (gid_t)-1 || gid == OVERFLOW_GID)
		return false;
	if (peer->gid == gid)
		return true;
	for (unsigned i = 0; i < peer->n_groups; i++)
		if (peer->groups[i] == gid)
			return true;
	return false;
}

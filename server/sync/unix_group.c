#include "server/sync/unix_group.h"

#include <errno.h>
#include <grp.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"

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

int unix_group_find(const char *name, gid_t *ret)
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

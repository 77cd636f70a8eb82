#include "server/base/nss.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdint.h>
#include <stdlib.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"

#define RECORD_SIZE_MAX (16 * MIB) /* all members of a group are in it */

/* 0, or an errno: ENOENT without such an entry, ERANGE when the record has no room. */
typedef int look_up_fn(const char *name, char *room, size_t size, uint32_t *ret);

static int nss_look_up_group(const char *name, char *room, size_t size, uint32_t *ret)
{
	struct group record, *found;
	int r = getgrnam_r(name, &record, room, size, &found);

	if (r == 0 && found)
		*ret = found->gr_gid;
	return r ? r : found ? 0 : ENOENT;
}

static int nss_look_up_user(const char *name, char *room, size_t size, uint32_t *ret)
{
	struct passwd record, *found;
	int r = getpwnam_r(name, &record, room, size, &found);

	if (r == 0 && found)
		*ret = found->pw_uid;
	return r ? r : found ? 0 : ENOENT;
}

static int nss_find(const char *name, look_up_fn *look_up, uint32_t *ret)
{
	uint64_t number;
	int r = ERANGE;

	if (num_parse(name, 10, &number) == 0) {
		if (number >= UINT32_MAX) /* not an id: "no user" */
			return -ENOENT;
		*ret = (uint32_t)number;
		return 0;
	}
	for (size_t size = 4 * KIB; r == ERANGE && size <= RECORD_SIZE_MAX; size *= 4) {
		cleanup(freep) char *room = malloc(size);

		r = room ? look_up(name, room, size, ret) : ENOMEM;
	}
	return r ? -ENOENT : 0;
}

int nss_find_user(const char *name, uid_t *ret)
{
	return nss_find(name, nss_look_up_user, ret);
}

int nss_find_group(const char *name, gid_t *ret)
{
	return nss_find(name, nss_look_up_group, ret);
}

#include "ipc/base/permission.h"

#include <errno.h>
#include <grp.h>
#include <inttypes.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ipc/base/cleanup.h"

#define ROOM_SIZE (1 << 20) /* room for one record; pages that are not written cost nothing */

bool permission_hides(const char *path)
{
	struct stat st;

	return stat(path, &st) < 0 && errno == EACCES;
}

static bool put_name(const char *name, uint32_t id, char ret[PERMISSION_NAME_MAX])
{
	if (name)
		(void)snprintf(ret, PERMISSION_NAME_MAX, "%s", name);
	else
		(void)snprintf(ret, PERMISSION_NAME_MAX, "%" PRIu32, id);
	return name;
}

bool permission_user_name(uint32_t uid, char ret[PERMISSION_NAME_MAX])
{
	cleanup(freep) char *room = malloc(ROOM_SIZE);
	struct passwd record, *found = NULL;

	if (room)
		(void)getpwuid_r(uid, &record, room, ROOM_SIZE, &found);
	return put_name(found ? found->pw_name : NULL, uid, ret);
}

bool permission_group_name(uint32_t gid, char ret[PERMISSION_NAME_MAX])
{
	cleanup(freep) char *room = malloc(ROOM_SIZE);
	struct group record, *found = NULL;

	if (room)
		(void)getgrgid_r(gid, &record, room, ROOM_SIZE, &found);
	return put_name(found ? found->gr_name : NULL, gid, ret);
}

/* The nearest to the root of what `path` leads through that is closed, or else `path` itself. */
static int find_closed(const char *path, char ret[PATH_MAX], struct stat *ret_st)
{
	size_t size = strlen(path);

	if (size >= PATH_MAX)
		return -ENAMETOOLONG;
	memcpy(ret, path, size + 1);
	while (stat(ret, ret_st) < 0) {
		char *slash = strrchr(ret, '/');

		if (errno != EACCES || !slash || slash == ret)
			return -ENOENT;
		*slash = '\0';
	}
	return 0;
}

void permission_explain(const char *path, char ret[PERMISSION_TEXT_MAX])
{
	char at[PATH_MAX], group[PERMISSION_NAME_MAX], user[PERMISSION_NAME_MAX];
	mode_t wanted;
	struct stat st;

	if (find_closed(path, at, &st) < 0) {
		(void)snprintf(ret, PERMISSION_TEXT_MAX, "a folder above it is closed to this user");
		return;
	}
	wanted = S_ISDIR(st.st_mode) ? S_IXGRP : S_IWGRP;
	if (!(st.st_mode & wanted)) {
		(void)permission_user_name(st.st_uid, user);
		(void)snprintf(ret, PERMISSION_TEXT_MAX, "%s is for its owner, '%s', alone",
			       S_ISDIR(st.st_mode) ? "its folder" : "it", user);
		return;
	}
	(void)permission_group_name(st.st_gid, group);
	(void)snprintf(ret, PERMISSION_TEXT_MAX,
		       "it is for the group '%s'; become a member (usermod -aG %s USER, by root) and "
		       "log in anew",
		       group, group);
}

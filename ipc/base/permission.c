#include "ipc/base/permission.h"

#include <errno.h>
#include <grp.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define NAME_SIZE 64
#define ROOM_SIZE 4096 /* for one record; a group with more members is named by its number */

bool permission_hides(const char *path)
{
	struct stat st;

	return stat(path, &st) < 0 && errno == EACCES;
}

static void name_group(gid_t gid, char ret[NAME_SIZE])
{
	struct group record, *found = NULL;
	char room[ROOM_SIZE];

	if (getgrgid_r(gid, &record, room, sizeof(room), &found) == 0 && found)
		(void)snprintf(ret, NAME_SIZE, "%s", found->gr_name);
	else
		(void)snprintf(ret, NAME_SIZE, "%u", gid);
}

static void name_user(uid_t uid, char ret[NAME_SIZE])
{
	struct passwd record, *found = NULL;
	char room[ROOM_SIZE];

	if (getpwuid_r(uid, &record, room, sizeof(room), &found) == 0 && found)
		(void)snprintf(ret, NAME_SIZE, "%s", found->pw_name);
	else
		(void)snprintf(ret, NAME_SIZE, "%u", uid);
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
	char at[PATH_MAX], group[NAME_SIZE], user[NAME_SIZE];
	mode_t wanted;
	struct stat st;

	if (find_closed(path, at, &st) < 0) {
		(void)snprintf(ret, PERMISSION_TEXT_MAX, "a folder above it is closed to this user");
		return;
	}
	wanted = S_ISDIR(st.st_mode) ? S_IXGRP : S_IWGRP;
	if (!(st.st_mode & wanted)) {
		name_user(st.st_uid, user);
		(void)snprintf(ret, PERMISSION_TEXT_MAX, "%s is for its owner, '%s', alone",
			       S_ISDIR(st.st_mode) ? "its folder" : "it", user);
		return;
	}
	name_group(st.st_gid, group);
	(void)snprintf(ret, PERMISSION_TEXT_MAX,
		       "it is for the group '%s'; become a member (usermod -aG %s USER, by root) and "
		       "log in anew",
		       group, group);
}

#include "ipc/socket_path.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

const char *socket_path_given(const char *path)
{
	if (!path || !path[0])
		path = getenv("WEIGHTD_SOCKET");
	return path && path[0] ? path : NULL;
}

int socket_path_user(char **ret)
{
	const char *folder = getenv("XDG_RUNTIME_DIR");
	struct stat st;
	char *path;

	if (!folder || !folder[0])
		return -ENOENT;
	/* A variable that su or sudo left: the owner of the folder decides what answers there. */
	if (stat(folder, &st) == 0 && st.st_uid != geteuid())
		return -ENOENT;
	if (asprintf(&path, "%s/weightd.sock", folder) < 0)
		return -ENOMEM;
	*ret = path;
	return 0;
}

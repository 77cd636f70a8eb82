/*
 * Socket paths
 *
 * Where weightd listens and where its clients look when no option names a path.
 */
#pragma once

/* The system's: of root, and of the unit, whose folder outlives its socket. */
#define SOCKET_PATH_SYSTEM "/run/weightd/weightd.sock"

/* `path`, or $WEIGHTD_SOCKET where that is NULL or empty; NULL: neither says anything. */
const char *socket_path_given(const char *path);

/*
 * A user's: weightd.sock in $XDG_RUNTIME_DIR. -ENOENT where that is not set, or is the folder of another
 * user; the caller frees it.
 */
int socket_path_user(char **ret);

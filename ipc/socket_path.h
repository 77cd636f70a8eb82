/*
 * Socket paths of weightd and its clients, if no option names a path
 */
#pragma once

/* The system's socket, for root and in the unit. The unit's folder outlives its socket. */
#define SOCKET_PATH_SYSTEM "/run/weightd/weightd.sock"

/* `path`, or $WEIGHTD_SOCKET if it is NULL or empty; NULL: neither is set. */
const char *socket_path_given(const char *path);

/*
 * A user's: weightd.sock in $XDG_RUNTIME_DIR. -ENOENT where that is not set, or is the folder of another
 * user; the caller frees it.
 */
int socket_path_user(char **ret);

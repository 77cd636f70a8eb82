/*
 * Permissions of a socket
 *
 * Describes the users that a socket admits, for a client that it refuses.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PERMISSION_TEXT_MAX 256
#define PERMISSION_NAME_MAX 64

/* True where this process may not even look at `path`: a folder above it is closed. */
bool permission_hides(const char *path);

/*
 * Why connect() to `path` failed with EACCES, and the way out: "it is for the group 'weightd'; become a
 * member (...) and log in anew". Asks the machine's databases for names, and may block on them.
 */
void permission_explain(const char *path, char ret[PERMISSION_TEXT_MAX]);

/*
 * The name of a user or group, from those databases; the number, and false, where they have none. A name that
 * is too long is cut.
 */
bool permission_user_name(uint32_t uid, char ret[PERMISSION_NAME_MAX]);
bool permission_group_name(uint32_t gid, char ret[PERMISSION_NAME_MAX]);

/*
 * Permissions of a socket
 *
 * The users that a socket admits, in words, for a client that it does not.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define PERMISSION_TEXT_MAX 256

/* True where this process may not even look at `path`: a folder above it is closed. */
bool permission_hides(const char *path);

/*
 * Why connect() to `path` failed with EACCES, and the way out: "its group is 'weightd': ...". Asks the
 * machine's databases for names, and may block on them.
 */
void permission_explain(const char *path, char ret[PERMISSION_TEXT_MAX]);

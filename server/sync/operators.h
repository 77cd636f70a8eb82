/*
 * Operators
 *
 * Users that may make this node push: root, the agent's own user, and the members of one Unix group.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "ipc/channel.h"

/* Returns whether the user at the other end of a socket is one of them; `gid` -1: no group. */
bool operators_have(gid_t gid, const struct channel_peer *peer);

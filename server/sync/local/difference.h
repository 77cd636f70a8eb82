/*
 * Differences
 *
 * How the layout of a version here differs from that of another node's, for people.
 */
#pragma once

#include "server/sync/local/task.h"

/*
 * Reads the other layout, whose sealed image comes with the message, and the names of both nodes. The outcome is a
 * failure always: -EPROTOTYPE with the first tensor that differs, if nothing else is wrong.
 */
int difference_tell(const struct weightd_buffer *b, const struct json_packet *t, struct fault *f);

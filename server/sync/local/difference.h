/*
 * Differences
 *
 * Explains to people how the layout of a version here differs from that of another node.
 */
#pragma once

#include "server/sync/local/task.h"

/*
 * Reads the other layout from the sealed image in the message, and the names of both nodes. Always returns a failure: -EPROTOTYPE with the first tensor that differs, if nothing else
 * fails.
 */
int difference_explain(const struct weightd_buffer *b, const struct json_packet *t, struct fault *f);

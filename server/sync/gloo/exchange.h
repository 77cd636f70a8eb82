/*
 * The exchange
 *
 * Moves bytes by a plan (ipc/reshard/moves.h) from the nodes' sources into the nodes' results. The
 * bytes between two nodes are a stream over their wire, cut into pieces of a chunk; bytes that stay
 * on a node are copied. At the end each node digests all streams over its own memory and reports
 * the digests: both ends of a stream must agree.
 */
#pragma once

#include "server/sync/gloo/engine.h"

extern const struct operation exchange_operation;

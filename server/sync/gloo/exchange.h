/*
 * The exchange
 *
 * Bytes that a plan (ipc/reshard/moves.h) takes out of the nodes' sources and puts into the nodes' results. What goes
 * between two nodes is a stream over their wire, cut into pieces of a chunk; what stays on a node is copied. At the end
 * each digests all streams over its own memory and tells: both ends of a stream have to agree.
 */
#pragma once

#include "server/sync/gloo/engine.h"

extern const struct operation exchange_operation;

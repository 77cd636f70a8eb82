/*
 * The chain
 *
 * A broadcast: a stream from the previous node, forwarded to the next one while it arrives. The
 * stream is cut into pieces of at most a chunk, each a transfer; several are under way at once.
 * Outgoing pieces never delay incoming ones: all of the stream has its place in memory.
 */
#pragma once

#include "server/sync/gloo/engine.h"

extern const struct operation chain_operation;

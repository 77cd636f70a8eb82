/*
 * The chain
 *
 * A broadcast: a stream from the node before this one, which goes on to the next one while it comes. The stream
 * is cut into pieces of at most a chunk, each a transfer; some are under way at once. What comes is never held
 * up by what goes: all of it has its place in memory.
 */
#pragma once

#include "server/sync/gloo/engine.h"

extern const struct operation chain_operation;

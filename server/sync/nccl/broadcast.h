/*
 * The broadcast
 *
 * The ranges of one node's memory, sent to all others. Receivers compare their order with the
 * source's before a byte moves.
 */
#pragma once

#include "server/sync/nccl/engine.h"

extern const struct operation broadcast_operation;

/*
 * The exchange
 *
 * Bytes that a plan moves between the memories of GPUs, by NCCL's sends and receives: in rounds, of
 * one piece of each link. The runs of a piece are gathered in memory of our own, sent, and scattered
 * at the other end. A link's digests are of the bytes in memory at both ends, independent of those
 * sent.
 */
#pragma once

#include "server/sync/nccl/engine.h"

extern const struct operation exchange_operation;

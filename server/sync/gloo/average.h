/*
 * The average
 *
 * The mean of tensors of all nodes, written to a second memory, bit-identical on all nodes. Each
 * node reduces the pieces that it owns, in the order of the ranks: every other node sends it its
 * terms, and it sends the result to all. So sums are never rounded to the tensor's type on the way,
 * and the number of bytes is that of a ring. Each node has a link with each other one.
 */
#pragma once

#include "server/sync/gloo/engine.h"

extern const struct operation average_operation;

/*
 * The average
 *
 * The mean of tensors that every node has, into a second memory, the same bits on all nodes: each node reduces
 * the pieces that it owns, for which every other node sends it its own, in the order of the ranks, and sends the
 * result to all. So whatever the type, sums are never rounded to it on the way, and the bytes are as few as those
 * of a ring. Each node has a link with each other one.
 */
#pragma once

#include "server/sync/gloo/engine.h"

extern const struct operation average_operation;

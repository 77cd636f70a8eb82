/*
 * The worker
 *
 * The thread that makes every call of the driver and of NCCL. It maps the memory, forms the
 * communicator, broadcasts the ranges in buckets, with an event after each, and waits until all
 * nodes have confirmed. NCCL has no deadlines, and a driver may never return: the worker polls,
 * with deadlines of its own, and the loop checks that it still polls.
 */
#pragma once

#include "server/sync/nccl/engine.h"

int worker_start(struct engine *e, char why[ENGINE_ORDER_WHY_SIZE]);

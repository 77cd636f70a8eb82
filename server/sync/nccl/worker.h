/*
 * The worker
 *
 * The thread that makes every call of the driver and of NCCL, from the first to the last: opens the memory, forms the
 * communicator, broadcasts the ranges in buckets, an event behind each, and lets all say that they have them. NCCL has
 * no deadlines, and a driver may never return; the worker asks again and again, with deadlines of its own, and the loop
 * sees that it still asks.
 */
#pragma once

#include "server/sync/nccl/engine.h"

int worker_start(struct engine *e, char why[ENGINE_ORDER_WHY_SIZE]);

/*
 * Surroundings
 *
 * What NCCL reads from the environment. What an administrator set stays, but for what would let strangers in.
 */
#pragma once

#include "server/sync/base/engine_order.h"

/* Before anything else runs in this process. -errno with a sentence. */
int surroundings_set(const struct engine_order *o, char why[ENGINE_ORDER_WHY_SIZE]);

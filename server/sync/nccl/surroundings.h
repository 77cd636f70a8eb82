/*
 * Surroundings
 *
 * What NCCL reads from the environment. What an administrator set stays, but for what would let strangers in.
 */
#pragma once

#include "server/sync/base/order.h"

/* Before anything else runs in this process. -errno with a sentence. */
int surroundings_set(const struct order *o, char why[ORDER_WHY_SIZE]);

/*
 * Surroundings
 *
 * The environment that NCCL reads. Settings of the administrator stay, except those that would
 * admit strangers.
 */
#pragma once

#include "server/sync/base/engine_order.h"

/* Must run before anything else in this process. -errno with a sentence. */
int surroundings_set(const struct engine_order *o, char why[ENGINE_ORDER_WHY_SIZE]);

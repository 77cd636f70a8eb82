/*
 * Placement
 *
 * NUMA nodes of host memory, as a client names them: those that weightd may use.
 */
#pragma once

#include "ipc/base/numa.h"
#include "ipc/wire.h"

#define PLACEMENT_WHY_SIZE 320

/* 0, or a negative errno, with a sentence. */
int placement_take(const struct wire_numa *m, struct numa_policy *ret, char why[PLACEMENT_WHY_SIZE]);

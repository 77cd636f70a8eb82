/*
 * NUMA nodes
 */
#pragma once

#include <stdint.h>

#include "ipc/base/numa.h"

/* Nodes in both sets; 1 at least. */
uint32_t nodes_count(const struct numa_nodes *with_memory, const struct numa_nodes *with_cpus);

/* Nodes of this machine that have memory and CPUs; 1 where the kernel does not say. */
uint32_t nodes_of_machine(void);

/*
 * NUMA nodes
 */
#pragma once

#include <stdint.h>

/* Nodes in both of two lists of the kernel, such as "0-1,4"; 1 at least. */
uint32_t nodes_count(const char *with_memory, const char *with_cpus);

/* Nodes of this machine that have memory and CPUs; 1 where the kernel does not say. */
uint32_t nodes_of_machine(void);

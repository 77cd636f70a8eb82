/*
 * NUMA nodes of this machine. All ranks count the same ones: an allowed set of CPUs does not change these files.
 */
#include "libclient/train/plan/nodes.h"

uint32_t nodes_count(const struct numa_nodes *with_memory, const struct numa_nodes *with_cpus)
{
	uint32_t n = 0;

	for (unsigned i = 0; i < NUMA_NODES_MAX; i++)
		n += numa_nodes_has(with_memory, i) && numa_nodes_has(with_cpus, i);
	return n ? n : 1;
}

uint32_t nodes_of_machine(void)
{
	struct numa_nodes with_memory, with_cpus;

	if (numa_nodes_of_machine("has_memory", &with_memory) < 0 ||
	    numa_nodes_of_machine("has_cpu", &with_cpus) < 0)
		return 1;
	return nodes_count(&with_memory, &with_cpus);
}

/*
 * The kernel leaves out nodes of a set that a process may not use, in silence, as long as it may use one of them. So each
 * is checked first. Then a page is given the policy, which shows whether system calls are filtered.
 */
#include "server/backend/placement.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"

#define PAGE 4096u

static_assert((int)WIRE_NUMA_PREFERRED == (int)NUMA_PREFERRED &&
		      (int)WIRE_NUMA_BIND == (int)NUMA_BIND &&
		      (int)WIRE_NUMA_INTERLEAVE == (int)NUMA_INTERLEAVE &&
		      sizeof(struct numa_nodes) == sizeof(((struct wire_numa *)0)->nodes),
	      "policies are ABI");

static int refuse_call(int r, char why[PLACEMENT_WHY_SIZE])
{
	if (r == -EPERM)
		(void)snprintf(why, PLACEMENT_WHY_SIZE,
			       "a filter of system calls forbids weightd to place memory (mbind); "
			       "allow it (the drop-in numa.conf, see weightd(8); CAP_SYS_NICE of a "
			       "container), or use --numa default");
	else
		(void)snprintf(why, PLACEMENT_WHY_SIZE,
			       "weightd cannot place memory on NUMA nodes (%s); use --numa default",
			       r == -ENOSYS ? "the kernel has none" : strerror(-r));
	return r;
}

/* Describes a node that weightd may not use. */
static int refuse_node(unsigned node, const struct numa_nodes *allowed, char why[PLACEMENT_WHY_SIZE])
{
	struct numa_nodes online, with_memory;
	char list[NUMA_TEXT_MAX];

	if (numa_nodes_of_machine("online", &online) == 0 && !numa_nodes_has(&online, node))
		(void)snprintf(why, PLACEMENT_WHY_SIZE,
			       "there is no NUMA node %u on this machine; it has %s", node,
			       numa_nodes_format(list, &online));
	else if (numa_nodes_of_machine("has_memory", &with_memory) == 0 &&
		 !numa_nodes_has(&with_memory, node))
		(void)snprintf(why, PLACEMENT_WHY_SIZE,
			       "NUMA node %u has no memory; nodes with memory: %s", node,
			       numa_nodes_format(list, &with_memory));
	else
		(void)snprintf(why, PLACEMENT_WHY_SIZE,
			       "weightd may not use memory of NUMA node %u, but of %s: its cpuset "
			       "decides (AllowedMemoryNodes= of a unit, --cpuset-mems of a container)",
			       node, numa_nodes_format(list, allowed));
	return -EINVAL;
}

static int try_policy(const struct numa_policy *policy)
{
	cleanup(fd_closep) int fd = -1;
	int r = fd_memfd("weightd-policy", PAGE, &fd);

	return r < 0 ? r : numa_set_file_policy(fd, PAGE, policy);
}

int placement_take(const struct wire_numa *m, struct numa_policy *ret, char why[PLACEMENT_WHY_SIZE])
{
	struct numa_policy policy = {.mode = (enum numa_mode)m->mode};
	struct numa_nodes allowed;
	int r;

	if (policy.mode == NUMA_DEFAULT) {
		*ret = policy;
		return 0;
	}
	r = numa_nodes_allowed(&allowed);
	if (r < 0)
		return refuse_call(r, why);
	memcpy(&policy.nodes, m->nodes, sizeof(policy.nodes));
	for (unsigned i = 0; i < NUMA_NODES_MAX; i++)
		if (numa_nodes_has(&policy.nodes, i) && !numa_nodes_has(&allowed, i))
			return refuse_node(i, &allowed, why);
	if (numa_nodes_count(&policy.nodes) == 0)
		policy.nodes = allowed;
	r = try_policy(&policy);
	if (r < 0)
		return refuse_call(r, why);
	*ret = policy;
	return 0;
}

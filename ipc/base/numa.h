/*
 * NUMA nodes and memory policies
 *
 * System calls of the kernel: libnuma would be a dependency of the client library for two of them, and takes policies of
 * threads alone, not of shared memory that other processes fill.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NUMA_NODES_MAX 1024 /* the most that Linux can have */

/* A set of nodes. */
struct numa_nodes {
	uint64_t bits[NUMA_NODES_MAX / 64];
};

/* Numbers of the kernel's. */
enum numa_mode {
	NUMA_DEFAULT = 0, /* the node of the thread that makes a page */
	NUMA_PREFERRED = 1, /* the node while it has free memory */
	NUMA_BIND = 2, /* the nodes alone */
	NUMA_INTERLEAVE = 3, /* the nodes in turn */
	NUMA_MODE_END,
};

struct numa_policy {
	enum numa_mode mode;
	struct numa_nodes nodes;
};

static inline bool numa_nodes_has(const struct numa_nodes *nodes, unsigned node)
{
	return node < NUMA_NODES_MAX && nodes->bits[node / 64] >> node % 64 & 1;
}

unsigned numa_nodes_count(const struct numa_nodes *nodes);

/* Takes a list of the kernel's form, "0,2-3" or "" for none, of numbers below `n_bits`. False for another text. */
bool numa_parse_list(const char *list, uint64_t *bits, unsigned n_bits);
/* Likewise. */
bool numa_nodes_parse(const char *list, struct numa_nodes *ret);

#define NUMA_TEXT_MAX 64

/* The list of a set, cut with "..." where it is long. Returns `buf`. */
const char *numa_nodes_format(char buf[NUMA_TEXT_MAX], const struct numa_nodes *nodes);

/* Nodes of /sys/devices/system/node/FILE ("online", "has_memory"). Returns a negative errno where there are none. */
int numa_nodes_of_machine(const char *file, struct numa_nodes *ret);

/* Nodes that the calling process may use memory of. Returns a negative errno where the kernel does not answer. */
int numa_nodes_allowed(struct numa_nodes *ret);

/* The policy of the calling thread. -EPERM or another errno where the kernel does not answer. */
int numa_thread_policy(struct numa_policy *ret);

/*
 * Sets the policy of `fd`, a memfd of `size` bytes, for pages that are made later: the kernel keeps it with the file, and it
 * holds for all processes (mbind(2) of a shared mapping). -EINVAL: none of the nodes is allowed; -EPERM.
 */
int numa_set_file_policy(int fd, uint64_t size, const struct numa_policy *policy);

#define NUMA_CPUS_MAX 8192

/* CPUs that a thread may run on. */
struct numa_cpus {
	uint64_t bits[NUMA_CPUS_MAX / 64];
};

/*
 * Has the calling thread, and those that it starts, run on the CPUs of `node` that it may run on; memory that they touch first
 * is there. `ret_before`: its CPUs, for numa_run_on(). False, and nothing has changed: it may run on none of them, or the
 * kernel does not answer.
 */
bool numa_run_on_node(unsigned node, struct numa_cpus *ret_before);
void numa_run_on(const struct numa_cpus *cpus);

/* The node on which the calling thread runs. */
unsigned numa_own_node(void);

/* True if the calling thread may run on that node alone, where several have memory. */
bool numa_is_on_one_node(unsigned node);

/* The node of a PCI device, "0000:3b:00.0"; -1: none, or unknown. */
int numa_node_of_pci(const char *address);

/* The policy that numa_set_file_policy() has set. NUMA_DEFAULT: none was. */
struct numa_policy numa_file_policy(int fd);

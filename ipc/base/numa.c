#include "ipc/base/numa.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"

/* <linux/mempolicy.h>, which a system without headers of the kernel does not have. */
#define POLICY_PREFERRED_MANY 5
#define POLICY_WEIGHTED_INTERLEAVE 6
#define POLICY_FLAGS (7 << 13) /* of a mode: static, relative, balancing */
#define OF_ADDRESS 2u /* MPOL_F_ADDR */
#define OF_ALLOWED 4u /* MPOL_F_MEMS_ALLOWED */
#define N_BITS (NUMA_NODES_MAX + 1) /* the kernel takes one from it */

#define LIST_MAX 4096

unsigned numa_nodes_count(const struct numa_nodes *nodes)
{
	unsigned n = 0;

	for (size_t i = 0; i < NUMA_NODES_MAX / 64; i++)
		n += (unsigned)__builtin_popcountll(nodes->bits[i]);
	return n;
}

/* Digits alone. */
static bool take_number(const char **p, unsigned long *ret)
{
	char *end;

	if (!isdigit((unsigned char)**p))
		return false;
	*ret = strtoul(*p, &end, 10);
	*p = end;
	return true;
}

bool numa_parse_list(const char *list, uint64_t *bits, unsigned n_bits)
{
	unsigned long first, last;

	memset(bits, 0, n_bits / 8);
	while (*list) {
		if (!take_number(&list, &first))
			return false;
		last = first;
		if (*list == '-' && (list++, !take_number(&list, &last)))
			return false;
		if (first > last || last >= n_bits)
			return false;
		for (unsigned long i = first; i <= last; i++)
			bits[i / 64] |= (uint64_t)1 << i % 64;
		if (*list == ',' && list[1])
			list++;
		else if (*list)
			return false;
	}
	return true;
}

bool numa_nodes_parse(const char *list, struct numa_nodes *ret)
{
	return numa_parse_list(list, ret->bits, NUMA_NODES_MAX);
}

const char *numa_nodes_format(char buf[NUMA_TEXT_MAX], const struct numa_nodes *nodes)
{
	size_t n = 0;

	buf[0] = '\0';
	for (unsigned i = 0, last; i < NUMA_NODES_MAX; i = last + 1) {
		last = i;
		if (!numa_nodes_has(nodes, i))
			continue;
		while (numa_nodes_has(nodes, last + 1))
			last++;
		if (n + sizeof(",1023-1023...") > NUMA_TEXT_MAX) {
			(void)strcpy(buf + n, "...");
			return buf;
		}
		n += (size_t)sprintf(buf + n, last > i ? "%s%u-%u" : "%s%u", n ? "," : "", i, last);
	}
	return buf;
}

/* The first line of a file, without its end. */
static int read_line(const char *path, char *ret, size_t size)
{
	cleanup(fd_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, ret, size - 1);

	if (n < 0)
		return -errno;
	ret[n] = '\0';
	ret[strcspn(ret, "\n")] = '\0';
	return 0;
}

int numa_nodes_of_machine(const char *file, struct numa_nodes *ret)
{
	char path[64], text[LIST_MAX];
	int r;

	(void)snprintf(path, sizeof(path), "/sys/devices/system/node/%s", file);
	r = read_line(path, text, sizeof(text));
	if (r < 0)
		return r;
	return numa_nodes_parse(text, ret) ? 0 : -EBADMSG;
}

int numa_nodes_allowed(struct numa_nodes *ret)
{
	return syscall(SYS_get_mempolicy, NULL, ret->bits, N_BITS, NULL, OF_ALLOWED) < 0 ? -errno
											 : 0;
}

static int get_policy(const void *address, unsigned flags, struct numa_policy *ret)
{
	int mode = 0;

	*ret = (struct numa_policy){.mode = NUMA_DEFAULT};
	if (syscall(SYS_get_mempolicy, &mode, ret->nodes.bits, N_BITS, address, flags) < 0)
		return -errno;
	switch (mode & ~POLICY_FLAGS) {
	case NUMA_PREFERRED:
	case POLICY_PREFERRED_MANY:
		ret->mode = NUMA_PREFERRED;
		break;
	case NUMA_BIND:
		ret->mode = NUMA_BIND;
		break;
	case NUMA_INTERLEAVE:
	case POLICY_WEIGHTED_INTERLEAVE:
		ret->mode = NUMA_INTERLEAVE;
		break;
	default:
		break;
	}
	/* Before Linux 5.14, "local" is "preferred" without a node. */
	if (numa_nodes_count(&ret->nodes) == 0)
		ret->mode = NUMA_DEFAULT;
	return 0;
}

int numa_thread_policy(struct numa_policy *ret)
{
	return get_policy(NULL, 0, ret);
}

struct numa_policy numa_file_policy(int fd)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct numa_policy policy = {.mode = NUMA_DEFAULT};
	void *p = mmap(NULL, page, PROT_NONE, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		return policy;
	(void)get_policy(p, OF_ADDRESS, &policy);
	(void)munmap(p, page);
	return policy;
}

int numa_set_file_policy(int fd, uint64_t size, const struct numa_policy *policy)
{
	bool is_many = policy->mode == NUMA_PREFERRED && numa_nodes_count(&policy->nodes) > 1;
	int mode = is_many ? POLICY_PREFERRED_MANY : (int)policy->mode;
	void *p = mmap(NULL, size, PROT_NONE, MAP_SHARED, fd, 0);
	int r;

	if (p == MAP_FAILED)
		return -errno;
	r = syscall(SYS_mbind, p, size, mode, policy->nodes.bits, N_BITS, 0) < 0 ? -errno : 0;
	(void)munmap(p, size);
	return r;
}

static bool cpus_of_node(unsigned node, struct numa_cpus *ret)
{
	char path[64], text[LIST_MAX];

	(void)snprintf(path, sizeof(path), "/sys/devices/system/node/node%u/cpulist", node);
	return read_line(path, text, sizeof(text)) == 0 &&
	       numa_parse_list(text, ret->bits, NUMA_CPUS_MAX);
}

bool numa_run_on_node(unsigned node, struct numa_cpus *ret_before)
{
	struct numa_cpus cpus;
	uint64_t any = 0;

	if (!cpus_of_node(node, &cpus) ||
	    sched_getaffinity(0, sizeof(*ret_before), (cpu_set_t *)ret_before->bits) < 0)
		return false;
	for (size_t i = 0; i < NUMA_CPUS_MAX / 64; i++)
		any |= cpus.bits[i] &= ret_before->bits[i];
	return any && sched_setaffinity(0, sizeof(cpus), (const cpu_set_t *)cpus.bits) == 0;
}

unsigned numa_own_node(void)
{
	unsigned cpu, node = 0;

	(void)syscall(SYS_getcpu, &cpu, &node, NULL);
	return node < NUMA_NODES_MAX ? node : 0;
}

bool numa_is_on_one_node(unsigned node)
{
	struct numa_nodes with_memory;
	struct numa_cpus own, cpus;

	if (numa_nodes_of_machine("has_memory", &with_memory) < 0 ||
	    numa_nodes_count(&with_memory) < 2 || !cpus_of_node(node, &cpus) ||
	    sched_getaffinity(0, sizeof(own), (cpu_set_t *)own.bits) < 0)
		return false;
	for (size_t i = 0; i < NUMA_CPUS_MAX / 64; i++)
		if (own.bits[i] & ~cpus.bits[i])
			return false;
	return true;
}

void numa_run_on(const struct numa_cpus *cpus)
{
	(void)sched_setaffinity(0, sizeof(*cpus), (const cpu_set_t *)cpus->bits);
}

int numa_node_of_pci(const char *address)
{
	char path[64], text[16];
	uint64_t node;

	(void)snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/numa_node", address);
	/* "-1" on a machine without nodes, and where the firmware names none. */
	if (read_line(path, text, sizeof(text)) < 0 || num_parse(text, 10, &node) < 0 ||
	    node >= NUMA_NODES_MAX)
		return -1;
	return (int)node;
}

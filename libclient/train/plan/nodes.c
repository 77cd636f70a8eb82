/*
 * NUMA nodes of this machine. All ranks count the same ones: an allowed set of CPUs does not change these files.
 */
#include "libclient/train/plan/nodes.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

#define NODES_MAX 1024 /* the most that Linux can have */
#define LIST_SIZE 4096

static void mark_list(const char *text, uint8_t marked[NODES_MAX], uint8_t mark)
{
	char *p = (char *)text;

	while (isdigit((unsigned char)*p)) {
		unsigned long first = strtoul(p, &p, 10), last = first;

		if (*p == '-')
			last = strtoul(p + 1, &p, 10);
		for (unsigned long i = first; i <= last && i < NODES_MAX; i++)
			marked[i] |= mark;
		if (*p == ',')
			p++;
	}
}

uint32_t nodes_count(const char *with_memory, const char *with_cpus)
{
	uint8_t marked[NODES_MAX] = {0};
	uint32_t n = 0;

	mark_list(with_memory, marked, 1);
	mark_list(with_cpus, marked, 2);
	for (size_t i = 0; i < NODES_MAX; i++)
		n += marked[i] == 3;
	return n ? n : 1;
}

static void read_list(const char *path, char ret[LIST_SIZE])
{
	FILE *f = fopen(path, "re");

	if (!f || !fgets(ret, LIST_SIZE, f))
		ret[0] = 0;
	if (f)
		(void)fclose(f);
}

uint32_t nodes_of_machine(void)
{
	char with_memory[LIST_SIZE], with_cpus[LIST_SIZE];

	read_list("/sys/devices/system/node/has_memory", with_memory);
	read_list("/sys/devices/system/node/has_cpu", with_cpus);
	return nodes_count(with_memory, with_cpus);
}

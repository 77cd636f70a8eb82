/*
 * NUMA nodes of this machine. All ranks see the same ones: an allowed set of CPUs does not change the files.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

#include "libclient/train/plan/build.h"

#define NODES_MAX 1024

/* Marks the nodes of a list such as "0-1,4". */
static void read_list(const char *path, uint8_t marked[NODES_MAX], uint8_t mark)
{
	char text[4096];
	FILE *f = fopen(path, "re");
	char *p = text;

	if (!f)
		return;
	if (!fgets(text, sizeof(text), f))
		text[0] = 0;
	(void)fclose(f);
	while (isdigit((unsigned char)*p)) {
		unsigned long first = strtoul(p, &p, 10);
		unsigned long last = *p == '-' ? strtoul(p + 1, &p, 10) : first;

		for (unsigned long i = first; i <= last && i < NODES_MAX; i++)
			marked[i] |= mark;
		if (*p == ',')
			p++;
	}
}

uint32_t build_n_nodes(void)
{
	uint8_t marked[NODES_MAX] = {0};
	uint32_t n = 0;

	read_list("/sys/devices/system/node/has_memory", marked, 1);
	read_list("/sys/devices/system/node/has_cpu", marked, 2);
	for (size_t i = 0; i < NODES_MAX; i++)
		n += marked[i] == 3;
	return n ? n : 1;
}

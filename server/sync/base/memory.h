/*
 * The memory
 *
 * A memfd of the agent with the bytes that are sent or received. Its owner sealed it, so it cannot shrink.
 * A version that is a file has a header in front of them, which stays on the node.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct memory {
	int fd; /* borrowed */
	uint64_t at; /* where the bytes begin in it */
	uint8_t *map; /* the first of the bytes; NULL: no mapping is needed */
	uint64_t size;
};

/*
 * The `size` bytes from `at` on. A source is read-only, and may be read by the kernel alone. -errno.
 */
int memory_init(struct memory *m, int fd, uint64_t at, uint64_t size, bool is_source,
		bool is_read_here);
void memory_deinit(struct memory *m);

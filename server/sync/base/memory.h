/*
 * The memory
 *
 * A memfd of the agent's, whose bytes go out or come in. It cannot shrink: who gave it sealed it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct memory {
	int fd; /* borrowed */
	uint8_t *map; /* NULL: nobody needs it mapped */
	uint64_t size;
};

/* A source is only read, and perhaps by the kernel alone. -errno. */
int memory_init(struct memory *m, int fd, uint64_t size, bool is_source, bool is_read_here);
void memory_deinit(struct memory *m);

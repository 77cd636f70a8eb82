/*
 * Guard
 *
 * A table of this process's mappings of weightd's host memory, which a signal handler can read to explain a write
 * to published bytes, a SIGSEGV. The table is maintained in any case. Adding an entry costs an atomic exchange; if
 * the table is full, a read of each of its rows.
 */
#pragma once

#include <stdint.h>

#include "ipc/layout.h"
#include "libclient/version/memory.h"

/* A row, embedded in what has the memory. */
struct guarded {
	const char *name; /* name of the buffer */
	const uint64_t *version;
	const struct layout *layout;
	const struct memory *memory;
	unsigned slot; /* in the table, from 1; 0: in none */
};

/* From now on the memory is named; where the table is full, or on a GPU, it is not. */
void guard_add(struct guarded *g, const char *name, const uint64_t *version,
	       const struct layout *layout, const struct memory *memory);

/* To be called before the memory is unmapped. One that is in no table is fine. */
void guard_remove(struct guarded *g);

/*
 * The window on a layout
 *
 * Maps the one layout that the worker checks now, and bounds what of it is resident: a user can send
 * many layouts at once, and big ones, and what weightd maps of them counts as memory of weightd, by
 * which the kernel chooses what it kills. All on the worker's thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/base/num.h"
#include "ipc/layout.h"

/* The part that one page fault can make resident. */
#define LAYOUT_BLOCK_SIZE (2 * MIB)
#define LAYOUT_WINDOW_BLOCKS 16
#define LAYOUT_WINDOW_SIZE (LAYOUT_WINDOW_BLOCKS * LAYOUT_BLOCK_SIZE)

struct layout_window {
	const void *owner; /* NULL: nothing is mapped */
	const char *image;
	size_t size;
	int fd; /* the owner's, open while it is mapped */
	uint16_t blocks[LAYOUT_WINDOW_BLOCKS]; /* the resident ones, in a ring */
	unsigned n_blocks, oldest;
	bool is_resident[LAYOUT_SIZE_MAX / LAYOUT_BLOCK_SIZE + 1];
};

/*
 * Maps an owner's layout, in place of that of another owner. 1: it is mapped anew; 0: it was mapped
 * already; or a negative errno.
 */
int layout_window_map(struct layout_window *w, const void *owner, int fd, size_t size);
/* Unmaps an owner's layout, if it is mapped. */
void layout_window_unmap(struct layout_window *w, const void *owner);

/*
 * A layout_touch_fn: makes room for bytes of the layout that are to be read. `arg` is a struct
 * layout_window.
 */
bool layout_window_touch(void *arg, const void *p, size_t size);

/* A layout_copy_fn: reads bytes of the layout without a mapping. `arg` is a struct layout_window. */
bool layout_window_copy(void *arg, const void *p, size_t size, void *ret);

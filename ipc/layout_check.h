/*
 * The check of a layout
 *
 * Everything that readers rely on in an image (layout.h), looked at in steps of about a millisecond,
 * whatever the image: for millions of tensors, and for images made to be slow.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ipc/hash.h"
#include "ipc/layout.h"

/*
 * Called before bytes of the image are read, where not all of it may be in memory at once. True:
 * bringing them there took longer than reading them.
 */
typedef bool (*layout_touch_fn)(void *arg, const void *p, size_t size);

/*
 * Copies bytes of the image from where it lies, without bringing them into memory: for bytes that are
 * scattered over it, of which the next ones push out what was brought for the last. False: it failed.
 */
typedef bool (*layout_copy_fn)(void *arg, const void *p, size_t size, void *ret);

struct layout_check {
	struct layout layout;
	uint64_t size;
	layout_touch_fn touch; /* NULL: all of the image may be in memory */
	layout_copy_fn copy; /* set with touch */
	void *touch_arg; /* of both */
	uint64_t end; /* end of the last tensor that was checked */
	uint64_t n_leaves;
	uint64_t next_leaf;
	uint32_t next_tensor;
	uint32_t next_probe; /* of that tensor in the name index; 0: it was not begun */
	uint32_t next_unit;
	uint32_t effort; /* since the clock was looked at */
	uint64_t deadline_ns; /* end of the step */
	bool is_over; /* the step is past it */
	uint32_t at; /* the tensor or unit that is wrong */
	const char *why; /* static text, set with -EBADMSG */
	uint8_t (*leaves)[HASH_SIZE];
};

int layout_check_init(struct layout_check *c, const void *image, uint64_t size);
void layout_check_deinit(struct layout_check *c);

/* The same image is at another address from now on. */
void layout_check_move(struct layout_check *c, const void *image);

/* Looks at about a millisecond's worth. 1: call again; 0: the image is right; -EBADMSG; -ENOMEM. */
int layout_check_step(struct layout_check *c);

/*
 * Layout validation
 *
 * Checks a layout that a client sent in a sealed memfd: once, in steps on the worker, since a big
 * one takes long. A layout that passes becomes a table and is never checked again.
 */
#pragma once

#include <stdint.h>

#include "ipc/layout.h"

struct layout_validation {
	int fd; /* read-only; -1 once it was taken */
	uint64_t size;
	const void *image; /* mapped while it is checked */
	struct layout_check check; /* has the error, and where it is */
	struct layout_header header; /* set when it passed */
};

void layout_validation_init(struct layout_validation *i);
/* Unmaps; the descriptor is the caller's to close, since that may take long. */
void layout_validation_deinit(struct layout_validation *i);

/*
 * Opens a client's descriptor, which the caller keeps: -EBADMSG unless it is a sealed memfd of at
 * most 1 GiB.
 */
int layout_validation_open(struct layout_validation *i, int fd);

/* On the worker: a job's step. JOB_AGAIN, JOB_DONE or what is wrong. */
int layout_validation_step(struct layout_validation *i);

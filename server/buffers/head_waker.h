/*
 * The waker of head pages
 *
 * Wakes the readers that sleep on a head page, on a thread of its own: the kernel takes some microseconds
 * for each of them, and there may be hundreds. The flip itself is the loop's, and done before.
 */
#pragma once

#include <stdbool.h>

#include "server/base/threads/worker.h"

struct buffer;

/* A buffer's part in it. */
struct head_waker {
	struct job job;
	bool running; /* and the buffer is referenced for it */
	bool again; /* it was flipped meanwhile */
};

/* Wakes the readers that sleep on the buffer's head page, soon. */
void head_waker_wake(struct buffer *b);

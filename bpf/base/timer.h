/*
 * A timer of the loop
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "bpf/base/loop.h"

struct timer {
	struct waiter waiter; /* what is called when it is over */
	bool runs;
};

#define TIMER(fn)                                                                                  \
	(struct timer)                                                                             \
	{                                                                                          \
		.waiter = {.fd = -1, .ready = (fn) }                                               \
	}

int timer_open(struct timer *t, int loop_fd);
/* One that is not open, too. */
void timer_close(struct timer *t, int loop_fd);
/* So long from now, once; one that runs goes on as it is. */
void timer_begin(struct timer *t, uint64_t ns);
/* By what is called. False: it was called for nothing. */
bool timer_end(struct timer *t);

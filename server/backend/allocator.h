/*
 * The allocator
 *
 * weightd-cuda as a child of weightd: started for the first request, asked one thing at a time,
 * killed when it does not answer in time, and ended when it was idle for a while, since its
 * contexts take memory of the GPUs. A request without an answer has failed. The next one starts the
 * child anew, but not at once when it dies again and again. All of it belongs to one worker's
 * thread.
 *
 * A child that holds memory for readers is left alone instead of killed, and ends on its own.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "server/base/child.h"
#include "server/cuda/protocol.h"

struct allocator {
	struct child child;
	bool holds; /* see holder.h: it is not killed while it may hold something */
	bool has_held; /* since it was started */
	const char *path; /* "": beside weightd's own program */
	uint64_t timeout_ns;
	int stop_fd; /* an eventfd: no more questions, and none that is being asked */
	uint64_t serial;
	uint64_t used_ns; /* when it answered last */
	unsigned n_deaths; /* in a row */
	uint64_t not_before_ns; /* earliest time of the next start */
};

int allocator_init(struct allocator *a, const char *path, uint64_t timeout_s);
/* Its thread is over. */
void allocator_deinit(struct allocator *a);

/* From another thread: requests in progress and later ones return -ECANCELED. */
void allocator_stop(struct allocator *a);

/*
 * Asks; protocol and serial are filled in. 0 or the error that it answered or that befell it, with a clause
 * why in the reply in any case. *ret_fd is only there for ALLOCATE and HOLD.
 */
int allocator_ask(struct allocator *a, struct allocator_request *q, struct allocator_reply *ret,
		  int *ret_fd);

/* Lets some milliseconds pass, unless it is stopped. */
void allocator_pause(struct allocator *a);

bool allocator_is_running(const struct allocator *a);

/* Ends it: when it is used again, it is started again. */
void allocator_rest(struct allocator *a);

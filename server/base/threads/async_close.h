/*
 * Asynchronous close
 *
 * Closes descriptors on threads of their own. close() of a descriptor from another process may block
 * for as long as the filesystem behind it likes (FUSE waits for its daemon to answer a flush): the
 * thread may be stuck while the loop runs. A user has one thread at a time, so that the descriptors of
 * others do not wait behind a stuck one. The caller counts the descriptors being closed, and refuses
 * more from a user whose thread is stuck.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "server/base/threads/worker.h"

/* Threads at most: as many users may be stuck before others wait. */
#define ASYNC_CLOSE_LANES 32

struct closing_lane;

struct async_close {
	struct loop *loop;
	struct closing_lane *lanes[ASYNC_CLOSE_LANES]; /* the first stays; NULL: no thread */
	struct list waiting; /* async_closing::job.link, for want of a lane */
	struct timer idle; /* ends threads without work */
};

/* Descriptors that came together; belongs to the thread until done(). */
struct async_closing {
	struct job job;
	struct async_close *owner;
	struct closing_lane *lane;
	uid_t uid;
	int *fds; /* the caller's memory */
	unsigned n_fds; /* that are still open */
	void (*done)(struct async_closing *closing); /* on the loop's thread; may free it */
};

int async_close_init(struct async_close *c, struct loop *l);
/* False when something is still stuck: it ends with the process. */
bool async_close_deinit(struct async_close *c);

/* Takes descriptors, which the user sent; `closing` has them. */
void async_close_start(struct async_close *c, struct async_closing *closing, uid_t uid,
		       void (*done)(struct async_closing *closing));

/* Likewise for memfds, which any worker can close: that ends, but may take a tenth of a second for each. */
void async_close_start_memfds(struct worker *worker, struct async_closing *closing, uid_t uid,
			      void (*done)(struct async_closing *closing));

/*
 * True when the user's thread has worked for a second on descriptors that came together, or there is none for them for so
 * long.
 */
bool async_close_is_stuck(const struct async_close *c, uid_t uid);

/* Takes a memfd, or -1. Closing one ends, but may take a tenth of a second: any worker can do it. */
void async_close_memfd(struct worker *worker, uid_t uid, int fd);

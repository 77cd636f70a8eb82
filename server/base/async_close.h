/*
 * Asynchronous close
 *
 * Closes descriptors on a thread of its own. close() of a descriptor from another process may block
 * for as long as the filesystem behind it likes (FUSE waits for its daemon to answer a flush): the
 * thread may be stuck while the loop runs. The caller counts the descriptors being closed, and
 * refuses more while the thread is stuck.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "server/base/worker.h"

struct async_close {
	struct worker worker; /* may be stuck */
	uint64_t progress_ns; /* when the thread ended a job, or got one after it had none */
};

/* One descriptor; belongs to the thread until done(). */
struct async_closing {
	struct job job;
	struct async_close *owner;
	int fd;
	void (*done)(struct async_closing *closing); /* on the loop's thread; may free it */
};

int async_close_init(struct async_close *c, struct loop *l);
/* False when something is still stuck: it ends with the process. */
bool async_close_deinit(struct async_close *c);

/* Takes the descriptor. */
void async_close_start(struct async_close *c, struct async_closing *closing, int fd,
		       void (*done)(struct async_closing *closing));

/* True when the thread has worked on one descriptor for a second. */
bool async_close_is_stuck(const struct async_close *c);

/* Takes a memfd, or -1. Closing one ends, but may take a tenth of a second: any worker can do it. */
void async_close_memfd(struct worker *worker, int fd);

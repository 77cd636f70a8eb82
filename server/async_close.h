/*
 * Closing on threads of their own
 *
 * Gets rid of descriptors whose closing takes time. Closing what a client sent may block for as long as
 * the filesystem behind it likes (FUSE waits for its daemon to answer a flush), so whatever is no memfd is
 * closed on a thread of its own, which may be stuck without holding up anybody. While it is, a user with
 * too many descriptors in it gets no more connections. Freeing a memfd ends, but a big one takes a tenth of
 * a second: the worker does that.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "server/base/worker.h"

struct quota;

struct async_close {
	struct worker worker; /* may be stuck */
	struct worker *memfd_worker; /* the server's */
	struct quota *quota;
	uint64_t progress_ns; /* when the thread ended a job, or got one after it had none */
};

int async_close_init(struct async_close *c, struct loop *l, struct quota *quota,
		     struct worker *memfd_worker);
/* False when something is still stuck: it ends with the process, and so does its charge. */
bool async_close_deinit(struct async_close *c);

/* Takes the descriptor, which came from a client of this user. */
void async_close_fd(struct async_close *c, uid_t uid, int fd);

/* Takes a memfd; -1 is fine. */
void async_close_memfd(struct async_close *c, int fd);

/* False for a user with too many descriptors in a thread that is stuck. */
bool async_close_trusts(const struct async_close *c, uid_t uid);

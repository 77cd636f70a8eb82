/*
 * The closer
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

#include "server/worker.h"

struct quota;

struct closer {
	struct worker worker; /* may be stuck */
	struct worker *memfd_worker; /* the server's */
	struct quota *quota;
	uint64_t progress_ns; /* when the thread ended a job, or got one after it had none */
};

int closer_init(struct closer *c, struct loop *l, struct quota *quota, struct worker *memfd_worker);
/* False when something is still stuck: it ends with the process, and so does its charge. */
bool closer_deinit(struct closer *c);

/* Takes the descriptor, which came from a client of this user. */
void closer_close(struct closer *c, uid_t uid, int fd);

/* Takes a memfd; -1 is fine. */
void closer_close_memfd(struct closer *c, int fd);

/* False for a user with too many descriptors in a closer that is stuck. */
bool closer_trusts(const struct closer *c, uid_t uid);

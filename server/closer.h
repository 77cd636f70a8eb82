/*
 * The closer
 *
 * Gets rid of descriptors that clients sent and nobody wants. Closing one may block for as long as the
 * filesystem behind it likes (FUSE waits for its daemon to answer a flush), so whatever is no memfd is
 * closed on a thread of its own, which may be stuck without holding up anybody. A user with too many
 * descriptors stuck there gets no more connections.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "server/worker.h"

struct quota;

struct closer {
	struct worker worker;
	struct quota *quota;
};

int closer_init(struct closer *c, struct loop *l, struct quota *quota);
/* False when something is still stuck: it ends with the process, and so does its charge. */
bool closer_deinit(struct closer *c);

/* Takes the descriptor, which came from a client of this user. */
void closer_close(struct closer *c, uid_t uid, int fd);

/* False for a user with too many descriptors in the closer. */
bool closer_trusts(const struct closer *c, uid_t uid);

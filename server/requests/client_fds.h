/*
 * Descriptors of clients
 *
 * Closes what clients sent, and their connections. Memfds are closed by the worker. Everything else
 * may block in close(), and has a thread for that; while the thread is stuck, a user with too many
 * descriptors in it gets no more connections.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "server/base/async_close.h"

struct quota;

struct client_fds {
	struct async_close async_close;
	struct worker *memfd_worker; /* the server's */
	struct quota *quota;
};

int client_fds_init(struct client_fds *c, struct loop *l, struct quota *quota,
		    struct worker *memfd_worker);
/* False when something is still stuck: it ends with the process, and so does its charge. */
bool client_fds_deinit(struct client_fds *c);

/* Takes the descriptor, which a client of this user sent. */
void client_fds_close(struct client_fds *c, uid_t uid, int fd);

/* False for a user with too many descriptors in a thread that is stuck. */
bool client_fds_are_trusted(const struct client_fds *c, uid_t uid);

/*
 * The acceptor
 *
 * Accepts connections of other agents on the port of this node. It continues after any failed
 * connection, and when this process is out of descriptors.
 */
#pragma once

#include "server/base/loop.h"
#include "server/sync/net/address.h"

struct acceptor {
	int fd;
	struct source source;
	struct timer pause;
	void *owner;
	void (*fn)(void *owner, int fd, const struct address *address); /* takes the descriptor */
};

/* -errno: it cannot listen there. */
int acceptor_init(struct acceptor *a, struct loop *loop, const struct address *address,
		  void (*fn)(void *, int, const struct address *), void *owner);
void acceptor_deinit(struct acceptor *a);

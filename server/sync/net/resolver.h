/*
 * The resolver
 *
 * Resolves names of hosts in threads, since DNS may block: a few at a time, one name each. A thread
 * finishes alone if its lookup was cancelled.
 */
#pragma once

#include <netdb.h>
#include <stdbool.h>
#include <stdint.h>

#include "server/base/loop.h"

struct inquiry; /* the state that a thread and a lookup share */

struct resolver {
	int event_fd;
	struct source source;
	struct list waiting; /* lookups without a free thread */
	struct list running;
	unsigned n_threads;
};

struct lookup {
	struct list link; /* resolver::waiting, ::running */
	struct inquiry *inquiry; /* NULL while it waits */
	const char *host;
	uint16_t port;
	/* `error` is one of getaddrinfo()'s; `found` is borrowed, NULL on failure. */
	void (*fn)(struct lookup *l, int error, const struct addrinfo *found);
};

int resolver_init(struct resolver *r, struct loop *loop);
/* There must be no lookups left. */
void resolver_deinit(struct resolver *r);

void lookup_init(struct lookup *l, const char *host, uint16_t port,
		 void (*fn)(struct lookup *, int, const struct addrinfo *));
void lookup_start(struct lookup *l, struct resolver *r);
/* `fn` will not be called. */
void lookup_cancel(struct lookup *l);

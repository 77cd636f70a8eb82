/*
 * The resolver
 *
 * Names of hosts to addresses, by threads that may wait for DNS where the loop may not: a few at a time, one
 * name each. What nobody waits for any more they finish alone.
 */
#pragma once

#include <netdb.h>
#include <stdbool.h>
#include <stdint.h>

#include "server/base/loop.h"

struct inquiry; /* what a thread has of a lookup */

struct resolver {
	int event_fd;
	struct source source;
	struct list waiting; /* lookups for which no thread is free */
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
/* Nobody may wait any more. */
void resolver_deinit(struct resolver *r);

void lookup_init(struct lookup *l, const char *host, uint16_t port,
		 void (*fn)(struct lookup *, int, const struct addrinfo *));
void lookup_start(struct lookup *l, struct resolver *r);
/* `fn` is not called any more. */
void lookup_cancel(struct lookup *l);

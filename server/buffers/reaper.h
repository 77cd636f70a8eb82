/*
 * The reaper
 *
 * Frees versions that have ended as soon as nobody holds them. A lease that ends says so; a mapping
 * without a lease does not, and is asked for by the clock: soon at first, then once a second.
 */
#pragma once

#include <stdbool.h>

#include "server/base/loop.h"

struct buffer;
struct server;
struct version;

struct reaper {
	struct timer timer;
	struct server *server;
	uint64_t delay_ns;
};

void reaper_init(struct reaper *r, struct server *server);
void reaper_deinit(struct reaper *r);

/* Looks now. True when something is left: somebody holds it without a lease. */
bool reaper_look(struct reaper *r);

/* Something leaves: looks in the loop's next round. */
void reaper_soon(struct reaper *r);

/* Something leaves that somebody holds still. */
void reaper_start(struct reaper *r);

/* Frees what left the buffer and is not held any more; what is held by a mapping is looked at again. */
void reaper_reap(struct buffer *b);

/* Frees a version that leaves, unless somebody holds it. True when it is gone. */
bool version_reap(struct version *v);

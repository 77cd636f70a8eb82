/*
 * The reaper
 *
 * Frees versions that have ended as soon as no process holds them. The end of a lease triggers it.
 * A mapping without a lease ends silently, so a timer looks for it: soon at first, then once a
 * second.
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
	struct list buffers; /* with a version that leaves, the longest unseen first */
	unsigned n_buffers;
	bool cut; /* the last look saw only a part of them */
};

void reaper_init(struct reaper *r, struct server *server);
void reaper_deinit(struct reaper *r);

/* A version of the buffer leaves. */
void reaper_follow(struct buffer *b);
void reaper_forget(struct buffer *b);

/*
 * Looks now, for a bounded time: at those first that were not seen for the longest. True when a version is
 * left that a process holds without a lease, or perhaps is.
 */
bool reaper_look(struct reaper *r);

/* Something leaves: looks in the loop's next round. */
void reaper_soon(struct reaper *r);

/* Starts for a version that leaves while a process holds it. */
void reaper_start(struct reaper *r);

/* Frees what left the buffer and is not held any more; what is held by a mapping is looked at again. */
void reaper_reap(struct buffer *b);

/* Frees a version that leaves, unless a process holds it. True when it was freed. */
bool version_reap(struct version *v);

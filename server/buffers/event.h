/*
 * Events
 *
 * The changes of buffers, in order. The latest are kept in a ring; event_watch sends them to the
 * sessions that ask.
 */
#pragma once

#include <stdint.h>

#include "ipc/wire.h"
#include "server/base/loop.h"
#include "server/state/access.h"

struct buffer;
struct server;
struct version;

/* A kept event, and its audience: the users that could see the buffer then, or can now. */
struct event {
	struct wire_event_record record;
	struct access access;
};

struct events {
	struct event *ring; /* serial n at n % WIRE_EVENTS_KEPT */
	uint64_t last; /* serial of the latest, 0 before the first */
	struct list watchers;
	struct timer tell; /* them, in the loop's next round */
};

/* `tell` sends events to the watchers, in the loop's next round. -ENOMEM. */
int events_init(struct events *e, void (*tell)(struct timer *timer));
void events_deinit(struct events *e);

/*
 * The actor is the session with the request in progress (server::actor); else the publisher or the
 * writer.
 */
void event_of_buffer(enum wire_event event, const struct buffer *b);
void event_of_version(enum wire_event event, const struct version *v);

/*
 * Events
 *
 * What happened to buffers, in order, for those who watch. A ring of the last ones is remembered; a session
 * that asks for more than there is waits for the next.
 */
#pragma once

#include <stdint.h>

#include "ipc/wire.h"
#include "server/base/loop.h"
#include "server/state/access.h"

struct buffer;
struct server;
struct version;

/* One that is remembered, and who may know of it: who could see the buffer then, or can now. */
struct event {
	struct wire_event_record record;
	struct access access;
};

struct events {
	struct server *server;
	struct event *ring; /* serial n at n % WIRE_EVENTS_KEPT */
	uint64_t last; /* serial of the latest, 0 before the first */
	struct list watchers;
	struct timer tell; /* them, in the loop's next round */
};

/* `tell` answers the watchers, in the loop's next round after an event. -ENOMEM. */
int events_init(struct events *e, struct server *server, void (*tell)(struct timer *timer));
void events_deinit(struct events *e);

/* By whom: server::actor, whose request is being handled; else who published it, or is writing it. */
void event_of_buffer(enum wire_event event, const struct buffer *b);
void event_of_version(enum wire_event event, const struct version *v);

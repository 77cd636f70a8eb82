#include "server/buffers/event.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "server/buffers/buffer.h"
#include "server/buffers/version.h"
#include "server/buffers/writer.h"
#include "server/state/access.h"
#include "server/state/server.h"
#include "server/state/session.h"

int events_init(struct events *e, void (*tell)(struct timer *timer))
{
	list_init(&e->watchers);
	timer_init(&e->tell, tell);
	e->last = 0;
	e->ring = calloc(WIRE_EVENTS_KEPT, sizeof(*e->ring));
	return e->ring ? 0 : -ENOMEM;
}

void events_deinit(struct events *e)
{
	timer_stop(&e->tell);
	free(e->ring);
	e->ring = NULL;
}

static void event_append(const struct buffer *b, struct wire_event_record *record)
{
	struct server *server = b->server;
	struct events *e = server->events;

	record->serial = ++e->last;
	record->time_ns = buffer_now_ns();
	memcpy(record->name, b->name, sizeof(record->name));
	memcpy(record->device, b->device, sizeof(record->device));
	if (server->actor) {
		record->uid = server->actor->peer.uid;
		record->pid = (uint32_t)server->actor->peer.pid;
	}
	e->ring[e->last % WIRE_EVENTS_KEPT] = (struct event){.record = *record, .access = b->access};
	/* Not now: the caller is in the middle of a change. */
	if (!list_empty(&e->watchers))
		timer_start(&server->loop, &e->tell, 0);
}

static void name_writer(struct wire_event_record *record, const struct writer *w)
{
	if (!w)
		return;
	record->uid = w->uid;
	record->pid = (uint32_t)w->pid;
}

void event_of_buffer(enum wire_event event, const struct buffer *b)
{
	struct wire_event_record record = {.event = event, .version = b->current};

	name_writer(&record, b->writer);
	event_append(b, &record);
}

void event_of_version(enum wire_event event, const struct version *v)
{
	struct wire_event_record record = {.event = event, .version = v->number};

	if (event == WIRE_EVENT_VERSION_GONE)
		record.why = v->why;
	if (event == WIRE_EVENT_EVICTED)
		name_writer(&record, v->buffer->writer);
	if (event == WIRE_EVENT_PUBLISHED) {
		record.uid = v->uid;
		record.pid = (uint32_t)v->pid;
	}
	event_append(v->buffer, &record);
}

#include "server/requests/event_watch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/num.h"
#include "server/buffers/event.h"
#include "server/state/access.h"
#include "server/state/server.h"
#include "server/state/session.h"

/* A session that waits for the next event. */
struct watcher {
	struct list link; /* events::watchers */
	struct session *session;
	struct timer timer;
	uint64_t after;
};

void event_watch_forget(struct session *s)
{
	struct watcher *w = s->watcher;

	if (!w)
		return;
	timer_stop(&w->timer);
	list_remove(&w->link);
	s->watcher = NULL;
	free(w);
}

static bool may_see(struct session *s, const struct event *e)
{
	return access_allows(&e->access, &s->peer, ACCESS_READ) || access_owns(&e->access, &s->peer);
}

/* A page of the events after `after`. False when there are none that the session may see. */
static bool event_watch_fill_page(struct session *s, uint64_t after, struct wire_reply *reply)
{
	const struct events *e = s->server->events;
	struct wire_list_reply *list = &reply->list;
	struct wire_event_record missed = {.event = WIRE_EVENT_MISSED, .serial = after};
	uint64_t oldest = e->last < WIRE_EVENTS_KEPT ? 1 : e->last - WIRE_EVENTS_KEPT + 1;
	unsigned room = sizeof(list->records) / sizeof(struct wire_event_record);

	list->record_size = sizeof(struct wire_event_record);
	list->next = after;
	if (after > 0 && after + 1 < oldest) {
		memcpy(list->records, &missed, sizeof(missed));
		list->n_records = 1;
	}
	for (uint64_t n = after < oldest ? oldest : after + 1; n <= e->last; n++) {
		const struct event *event = &e->ring[n % WIRE_EVENTS_KEPT];

		if (may_see(s, event)) {
			if (list->n_records == room)
				break;
			memcpy(list->records + list->n_records++ * sizeof(event->record),
			       &event->record, sizeof(event->record));
		}
		list->next = n;
	}
	return list->n_records > 0;
}

static void event_watch_on_timeout(struct timer *timer)
{
	struct session *s = container_of(timer, struct watcher, timer)->session;

	event_watch_forget(s);
	session_fail(s, -ETIMEDOUT, "nothing happened in time");
}

void event_watch_new(struct session *s, const struct wire_events *ask)
{
	struct events *e = s->server->events;
	uint64_t after = ask->after == UINT64_MAX ? e->last : ask->after;
	struct wire_reply reply = {0};
	struct watcher *w;

	if (event_watch_fill_page(s, after, &reply)) {
		(void)session_reply(s, WIRE_EVENTS, &reply, NULL, 0);
		return;
	}
	w = calloc(1, sizeof(*w));
	if (!w) {
		session_fail(s, -ENOMEM, "weightd is out of memory");
		return;
	}
	w->session = s;
	w->after = reply.list.next;
	timer_init(&w->timer, event_watch_on_timeout);
	if (ask->timeout_ms >= 0)
		timer_start(&s->server->loop, &w->timer,
			    num_now_ns() + (uint64_t)ask->timeout_ms * 1000000);
	list_append(&e->watchers, &w->link);
	s->watcher = w;
}

/* In a turn of its user. */
static void event_watch_answer(struct session *s)
{
	struct watcher *w = s->watcher;
	struct wire_reply reply = {0};

	if (!w)
		return;
	if (!event_watch_fill_page(s, w->after, &reply)) {
		w->after = reply.list.next;
		return;
	}
	event_watch_forget(s);
	(void)session_reply(s, WIRE_EVENTS, &reply, NULL, 0);
}

void event_watch_tell(struct timer *timer)
{
	struct events *e = container_of(timer, struct events, tell);
	struct watcher *w;

	list_for_each(w, &e->watchers, link)
		session_wake(w->session, event_watch_answer);
}

/*
 * A client that reads too slowly loses packets, receives the number of lost packets, and holds up no other client.
 */
#include "bpf/follow.h"

#include <string.h>

#include "bpf/base/json_null.h"
#include "bpf/event/event.h"
#include "bpf/packets.h"
#include "bpf/rows.h"
#include "bpf/tracer.h"
#include "ipc/base/num.h"

#define FOLLOWED_MAX 512 /* packets that wait for one to read them */
#define EVENTS_WAITING_MAX 128 /* limit for events, which leaves room for the packets of syncs */

static bool is_receiver(const struct client *c, const struct client *owner)
{
	return c->observes || (c->follows && c == owner);
}

static void send_to(struct client *c, json_t *json)
{
	packets_send(c, json, FOLLOWED_MAX);
}

static bool is_observer(const struct client *c, const struct client *owner)
{
	(void)owner;
	return c->observes;
}

static bool has_receiver(const struct client *owner,
			 bool (*is_for)(const struct client *c, const struct client *owner))
{
	const struct client *c;

	list_for_each(c, &owner->tracer->clients, link)
		if (is_for(c, owner))
			return true;
	return false;
}

/* Takes `json`. */
static void send_to_all(const struct client *owner,
			bool (*is_for)(const struct client *c, const struct client *owner),
			json_t *json)
{
	struct client *c;

	list_for_each(c, &owner->tracer->clients, link)
		if (is_for(c, owner))
			send_to(c, json_incref(json));
	json_decref(json);
}

/* Takes `o`. What of a process has no name that JSON can hold has none. */
static json_t *with_owner(json_t *o, const struct client *owner)
{
	(void)json_object_set_new(o, "client",
				  json_pack("{sI so sI so}", "id", (json_int_t)owner->number, "pid",
					    pid_or_null(owner->pid), "uid", (json_int_t)owner->uid,
					    "comm", text_or_null(owner->comm)));
	return o;
}

json_t *follow_row_json(const struct client *owner, const struct row *row, const char *kind,
			const struct reading *now)
{
	return with_owner(row_json(row, kind, owner->tracer->collector.meter, now), owner);
}

json_t *follow_span_json(const struct client *owner, const struct span *span, const char *kind,
			 uint64_t ns)
{
	return with_owner(json_pack("{ss ss sI}", "kind", kind, "sync", span->sync, "ns",
				    (json_int_t)ns),
			  owner);
}

/* `source`: "ring", the meter had no room for them; "client", it was too slow. */
static void send_gap(struct client *c, uint64_t *lost, const char *source)
{
	uint64_t n = *lost;

	if (n == 0)
		return;
	*lost = 0; /* the gap itself may be lost, and counts then */
	send_to(c, json_pack("{ss sI ss sI sI}", "kind", "gap", "lost", (json_int_t)n, "source",
			     source, "from_ns", (json_int_t)c->tracer->sent_ns, "to_ns",
			     (json_int_t)num_now_ns()));
}

/* Reads what the row has now. Lost events of the row count as lost for all its receivers. */
static bool follow_look(struct client *owner, struct row *row, struct reading *ret)
{
	struct client *c;

	if (rows_look(owner, row, ret) < 0)
		return false;
	list_for_each(c, &owner->tracer->clients, link)
		if (is_receiver(c, owner))
			c->lost_in_ring += ret->totals.lost - row->lost_sent;
	row->lost_sent = ret->totals.lost;
	return true;
}

static void send_rows(struct client *c, struct client *owner)
{
	struct reading now;
	struct row *row;

	list_for_each(row, &owner->rows, link) {
		if (!follow_look(owner, row, &now))
			continue;
		send_gap(c, &c->lost_in_ring, "ring");
		if (rows_find_span(owner, row->label.sync))
			send_to(c, follow_row_json(owner, row, "progress", &now));
	}
}

/* Not while it still has much to read: the gap would be lost, and all that it counts. */
static void send_lost_events(struct client *c)
{
	if (c->n_queue >= FOLLOWED_MAX / 2) {
		c->is_behind = true;
		return;
	}
	for (int i = 0; i < N_EVENT_SOURCES; i++)
		send_gap(c, &c->lost_events[i], event_source_names[i]);
}

/* Not while it still has much to read: as soon as it has read that. */
void follow_catch_up(struct client *c)
{
	struct client *owner;

	c->is_behind = c->n_queue >= FOLLOWED_MAX / 2;
	if (c->is_behind)
		return;
	send_gap(c, &c->lost, "client");
	send_lost_events(c);
	list_for_each(owner, &c->tracer->clients, link)
		if (is_receiver(c, owner))
			send_rows(c, owner);
}

void follow_send_all(struct tracer *t)
{
	struct client *c;

	list_for_each(c, &t->clients, link)
		if (c->follows || c->observes)
			follow_catch_up(c);
}

static bool does_anyone_follow(const struct tracer *t)
{
	const struct client *c;

	list_for_each(c, &t->clients, link)
		if (c->follows || c->observes)
			return true;
	return false;
}

static void on_tcp_event(const struct tcp_event *e, void *context)
{
	static const char *const kinds[N_TCP_EVENTS] = {
		[TCP_EVENT_OPEN] = "open",
		[TCP_EVENT_CLOSE] = "close",
		[TCP_EVENT_RETRANSMIT] = "retransmit",
	};
	const struct tracer *t = context;
	struct client *owner;
	const struct row *row = does_anyone_follow(t) ? rows_find(t, e->sample.row, &owner) : NULL;

	if (row && e->kind < N_TCP_EVENTS && has_receiver(owner, is_receiver))
		send_to_all(owner, is_receiver,
			    with_owner(row_sample_json(row, kinds[e->kind], &e->sample), owner));
}

/* There may have been more of them than there was room for, which is looked for soon. */
void follow_take_tcp_events(struct tracer *t, bool all)
{
	if (!t->tcp_events.loop)
		return;
	t->collector.meter->kind->take_events(t->collector.meter, all, on_tcp_event, t);
	rows_look_soon(t);
}

void follow_send_event(struct tracer *t, json_t *event)
{
	struct client *c;

	list_for_each(c, &t->clients, link)
		if (c->observes)
			packets_send(c, json_incref(event), EVENTS_WAITING_MAX);
	json_decref(event);
}

void follow_count_lost(struct tracer *t, uint64_t n, enum event_source source)
{
	struct client *c;

	t->metrics.lost_events[source] += n;
	list_for_each(c, &t->clients, link)
		if (c->observes) {
			c->lost_events[source] += n;
			send_lost_events(c);
		}
	rows_look_soon(t); /* there may be more */
}

void follow_send_unseen(struct tracer *t, const char *path, uint64_t since_ns,
			enum event_source source)
{
	json_t *gap = json_pack("{ss sn ss sI sI so}", "kind", "gap", "lost", "source",
				event_source_names[source], "from_ns", (json_int_t)since_ns,
				"to_ns", (json_int_t)num_now_ns(), "path", text_or_null(path));
	struct client *c;

	t->metrics.late_probes++;
	list_for_each(c, &t->clients, link)
		if (c->observes)
			send_to(c, json_incref(gap));
	json_decref(gap);
	rows_look_soon(t); /* clients that were too slow for it learn that */
}

/* Losses before this are not reported to the client. */
void follow_begin(struct client *c, bool *flag)
{
	struct client *owner;
	struct reading now;
	struct row *row;

	list_for_each(owner, &c->tracer->clients, link)
		list_for_each(row, &owner->rows, link)
			(void)follow_look(owner, row, &now);
	*flag = true;
}

void follow_span_begins(struct client *owner, const struct span *span)
{
	if (has_receiver(owner, is_observer))
		send_to_all(owner, is_observer,
			    follow_span_json(owner, span, "begin", span->began_ns));
}

void follow_span_ends(struct client *owner, const struct span *span)
{
	struct reading now;
	struct row *row;
	json_t *total;

	list_for_each(row, &owner->rows, link) {
		if (strcmp(row->label.sync, span->sync) != 0 || !follow_look(owner, row, &now))
			continue;
		total = follow_row_json(owner, row, "total", &now);
		event_log_add(&owner->tracer->ended_rows,
			      json_object_get(json_object_get(total, "client"), "uid"), total);
		send_to_all(owner, is_observer, total);
	}
	send_to_all(owner, is_observer, follow_span_json(owner, span, "end", num_now_ns()));
}

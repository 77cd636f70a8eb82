/*
 * Who reads too slowly what it is told loses some, is told how many, and holds up nobody.
 */
#include "bpf/follow.h"

#include <string.h>

#include "bpf/base/json_null.h"
#include "bpf/tracer.h"
#include "ipc/base/num.h"

#define FOLLOWED_MAX 512 /* packets that wait for one to read them */
#define ACTS_WAITING_MAX 128 /* likewise of acts: they leave room for what syncs carry */

const char *const act_source_names[N_ACT_SOURCES] = {
	[ACTS_OF_PROBES] = "probes",
	[ACTS_OF_WEIGHTD] = "weightd",
	[ACTS_OF_DESCRIPTORS] = "descriptors",
};

static bool hears(const struct client *c, const struct client *owner)
{
	return c->observes || (c->follows && c == owner);
}

static void tell(struct client *c, json_t *json)
{
	client_say(c, json, FOLLOWED_MAX);
}

static bool observes(const struct client *c, const struct client *owner)
{
	(void)owner;
	return c->observes;
}

static bool is_told(const struct client *owner,
		    bool (*is_for)(const struct client *c, const struct client *owner))
{
	const struct client *c;

	list_for_each(c, &owner->tracer->clients, link)
		if (is_for(c, owner))
			return true;
	return false;
}

/* Takes `json`. */
static void tell_those(const struct client *owner,
		       bool (*is_for)(const struct client *c, const struct client *owner),
		       json_t *json)
{
	struct client *c;

	list_for_each(c, &owner->tracer->clients, link)
		if (is_for(c, owner))
			tell(c, json_incref(json));
	json_decref(json);
}

/* Takes `o`. What of a process has no name that JSON can hold has none. */
static json_t *with_owner(json_t *o, const struct client *owner)
{
	(void)json_object_set_new(o, "client",
				  json_pack("{sI so sI so}", "id", (json_int_t)owner->number, "pid",
					    known_pid(owner->pid), "uid", (json_int_t)owner->uid,
					    "comm", known_text(owner->comm)));
	return o;
}

json_t *follow_row_json(const struct client *owner, const struct row *row, const char *kind,
			const struct reading *now)
{
	return with_owner(row_json(row, kind, owner->tracer->meter, now), owner);
}

json_t *follow_span_json(const struct client *owner, const struct span *span, const char *kind,
			 uint64_t ns)
{
	return with_owner(json_pack("{ss ss sI}", "kind", kind, "sync", span->sync, "ns",
				    (json_int_t)ns),
			  owner);
}

/* `source`: "ring", the meter had no room for them; "client", it was too slow. */
static void tell_gap(struct client *c, uint64_t *lost, const char *source)
{
	uint64_t n = *lost;

	if (n == 0)
		return;
	*lost = 0; /* the gap itself may be lost, and counts then */
	tell(c, json_pack("{ss sI ss sI sI}", "kind", "gap", "lost", (json_int_t)n, "source",
			  source, "from_ns", (json_int_t)c->tracer->told_ns, "to_ns",
			  (json_int_t)num_now_ns()));
}

/* What the row has now. Events of it that were lost are so for all that hear of it. */
static bool look(struct client *owner, struct row *row, struct reading *ret)
{
	struct client *c;

	if (client_look(owner, row, ret) < 0)
		return false;
	list_for_each(c, &owner->tracer->clients, link)
		if (hears(c, owner))
			c->lost_in_ring += ret->totals.lost - row->lost_told;
	row->lost_told = ret->totals.lost;
	return true;
}

static void tell_rows(struct client *c, struct client *owner)
{
	struct reading now;
	struct row *row;

	list_for_each(row, &owner->rows, link) {
		if (!look(owner, row, &now))
			continue;
		tell_gap(c, &c->lost_in_ring, "ring");
		if (client_find_span(owner, row->label.sync))
			tell(c, follow_row_json(owner, row, "progress", &now));
	}
}

/* Not while it still has much to read: the gap would be lost, and all that it counts. */
static void tell_lost_acts(struct client *c)
{
	if (c->n_queue >= FOLLOWED_MAX / 2) {
		c->is_behind = true;
		return;
	}
	for (int i = 0; i < N_ACT_SOURCES; i++)
		tell_gap(c, &c->lost_acts[i], act_source_names[i]);
}

/* Not while it still has much to read: as soon as it has read that. */
void follow_catch_up(struct client *c)
{
	struct client *owner;

	c->is_behind = c->n_queue >= FOLLOWED_MAX / 2;
	if (c->is_behind)
		return;
	tell_gap(c, &c->lost, "client");
	tell_lost_acts(c);
	list_for_each(owner, &c->tracer->clients, link)
		if (hears(c, owner))
			tell_rows(c, owner);
}

void follow_tell_all(struct tracer *t)
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

void follow_tell_event(struct tracer *t, const struct event *e)
{
	static const char *const kinds[N_EVENTS] = {
		[EVENT_OPEN] = "open",
		[EVENT_CLOSE] = "close",
		[EVENT_RETRANSMIT] = "retransmit",
	};
	struct client *owner;
	const struct row *row = does_anyone_follow(t) ? client_find_row(t, e->sample.row, &owner)
						      : NULL;

	if (row && e->kind < N_EVENTS && is_told(owner, hears))
		tell_those(owner, hears,
			   with_owner(row_sample_json(row, kinds[e->kind], &e->sample), owner));
}

void follow_tell_act(struct tracer *t, json_t *act)
{
	struct client *c;

	list_for_each(c, &t->clients, link)
		if (c->observes)
			client_say(c, json_incref(act), ACTS_WAITING_MAX);
	json_decref(act);
}

void follow_count_lost(struct tracer *t, uint64_t n, enum act_source source)
{
	struct client *c;

	t->metrics.lost_acts[source] += n;
	list_for_each(c, &t->clients, link)
		if (c->observes) {
			c->lost_acts[source] += n;
			tell_lost_acts(c);
		}
	tracer_look_soon(t); /* there may be more */
}

void follow_tell_unseen(struct tracer *t, const char *path, uint64_t since_ns,
			enum act_source source)
{
	json_t *gap = json_pack("{ss sn ss sI sI so}", "kind", "gap", "lost", "source",
				act_source_names[source], "from_ns", (json_int_t)since_ns, "to_ns",
				(json_int_t)num_now_ns(), "path", known_text(path));
	struct client *c;

	t->metrics.late_probes++;
	list_for_each(c, &t->clients, link)
		if (c->observes)
			tell(c, json_incref(gap));
	json_decref(gap);
	tracer_look_soon(t); /* who was too slow for it is told so */
}

/* Of what was lost before, it is not told. */
void follow_begin(struct client *c, bool *flag)
{
	struct client *owner;
	struct reading now;
	struct row *row;

	list_for_each(owner, &c->tracer->clients, link)
		list_for_each(row, &owner->rows, link)
			(void)look(owner, row, &now);
	*flag = true;
}

void follow_span_begins(struct client *owner, const struct span *span)
{
	if (is_told(owner, observes))
		tell_those(owner, observes, follow_span_json(owner, span, "begin", span->began_ns));
}

void follow_span_ends(struct client *owner, const struct span *span)
{
	struct reading now;
	struct row *row;
	json_t *total;

	list_for_each(row, &owner->rows, link) {
		if (strcmp(row->label.sync, span->sync) != 0 || !look(owner, row, &now))
			continue;
		total = follow_row_json(owner, row, "total", &now);
		kept_add(&owner->tracer->past,
			 json_object_get(json_object_get(total, "client"), "uid"), total);
		tell_those(owner, observes, total);
	}
	tell_those(owner, observes, follow_span_json(owner, span, "end", num_now_ns()));
}

/*
 * A plan is told in pieces, as the links of a large group do not fit into one packet; each has the sums of all.
 * Bytes on the wire are what the tally of each receiver will have to say, if nothing breaks.
 */
#include "server/sync/plan.h"

#include <math.h>

#include "server/sync/delta.h"
#include "server/sync/epoch.h"
#include "server/sync/pairing.h"

#define LINKS_OF_PIECE                                                                             \
	128 /* of 370 bytes at most, beside what the event has else: below TALK_SIZE_MAX */

/*
 * By the slowest of those that were measured; UINT64_MAX: nobody was. Who never was cannot be told apart from
 * the one before it in a chain, which was faster than that.
 */
static uint64_t slowest(const struct agent *a, const struct transaction *t)
{
	uint64_t rate = t->max_rate ? t->max_rate : UINT64_MAX;

	for (const struct member *m = t->first; m; m = m->next)
		if (a->peers[m->peer].rate && a->peers[m->peer].rate < rate)
			rate = a->peers[m->peer].rate;
	return rate;
}

static json_t *number_or_null(uint64_t n, bool is_known)
{
	return is_known ? json_integer((json_int_t)n) : json_null();
}

static uint64_t over_link(const struct agent *a, const struct transaction *t,
			  const struct member *from, const struct member *to)
{
	return epoch_planned(a, a->config->gloo, &t->ranges, pairing_count(a, t, from, to));
}

/* Without links. */
static json_t *piece(const struct agent *a, const struct transaction *t, const struct plan *p)
{
	const struct document *d = t->document;
	const bool takes_known = p->takes_ns < 9e18;

	return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:s, s:s, s:I, s:I, s:I, s:o, "
			 "s:o, s:i, s:[]}",
			 "event", "plan", "sync", t->sync, "kind", t->is_repair ? "repair" : "push",
			 "buffer", t->head->buffer, "group", d->group, "role", "publisher", "term",
			 (json_int_t)d->pair.term, "number", (json_int_t)d->pair.number, "epoch",
			 (json_int_t)t->epoch, "schedule", "chain", "by",
			 delta_way(p->has_patch, p->bytes, d->n_bytes), "size",
			 (json_int_t)d->n_bytes, "changed", (json_int_t)p->bytes, "total",
			 (json_int_t)p->total, "planned", number_or_null(p->wire, !a->config->tls),
			 "takes_ns",
			 number_or_null(takes_known ? (uint64_t)p->takes_ns : 0, takes_known),
			 "n_links", (int)json_array_size(p->links), "links");
}

void plan_add(const struct agent *a, const struct transaction *t, struct plan *p)
{
	const struct member *before = NULL;
	uint64_t rate = slowest(a, t);

	if (!p->links)
		p->links = json_array();
	p->has_patch |= t->by_patch;
	p->bytes += t->expected;
	p->takes_ns += rate == UINT64_MAX ? INFINITY : (double)t->expected / (double)rate * 1e9;
	for (const struct member *m = t->first; m; before = m, m = m->next) {
		const char *from = before ? before->name : a->config->name;
		uint64_t wire = over_link(a, t, before, m);

		json_array_append_new(p->links,
				      json_pack("{s:s, s:s, s:I, s:I, s:o}", "from", from, "to",
						m->name, "stripes",
						(json_int_t)pairing_count(a, t, before, m), "bytes",
						(json_int_t)t->expected, "planned",
						number_or_null(wire, !a->config->tls)));
		p->total += t->expected;
		p->wire += wire;
	}
}

void plan_deinit(struct plan *p)
{
	json_decref(p->links);
	*p = (struct plan){0};
}

void plan_tell(struct agent *a, const struct transaction *t, struct plan *p)
{
	size_t n = json_array_size(p->links), i = 0;

	do {
		json_t *event = piece(a, t, p), *links = json_object_get(event, "links");

		for (unsigned k = 0; i < n && k < LINKS_OF_PIECE; i++, k++)
			json_array_append(links, json_array_get(p->links, i));
		agent_event(a, event);
	} while (i < n);
	plan_deinit(p);
}

/* --- Joint syncs -------------------------------------------------------------------------------- */

struct link {
	const struct part *from, *to;
};

/* From one to each other one, then from the next; NULL ends: there are no more. */
static struct link next_link(const struct joint *j, struct link l)
{
	const struct part *end = j->parts + j->n_parts;

	do {
		if (++l.to == end) {
			l.from++;
			l.to = j->parts;
		}
	} while (l.from < end && (l.from == l.to || !l.from->is_in_epoch || !l.to->is_in_epoch));
	return l.from < end ? l : (struct link){0};
}

static json_t *joint_piece(const struct joint *j, uint64_t total, uint64_t planned)
{
	const struct document *d = j->document;
	double takes = j->max_rate ? (double)total / j->n_ranks / (double)j->max_rate * 1e9 : 9e18;

	return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:s, s:I, s:I, s:I, s:I, s:o, "
			 "s:i, s:[]}",
			 "event", "plan", "sync", j->sync, "kind", metrics_kind(j->operation->kind),
			 "buffer", j->head->buffer, "group", d->group, "role", "publisher", "term",
			 (json_int_t)d->pair.term, "number", (json_int_t)d->pair.number, "epoch",
			 (json_int_t)j->epoch, "schedule", j->operation->schedule, "size",
			 (json_int_t)d->n_bytes, "changed", (json_int_t)owned_total(&j->owned),
			 "total", (json_int_t)total, "planned", (json_int_t)planned, "takes_ns",
			 number_or_null((uint64_t)takes, takes < 9e18), "n_links",
			 (int)(j->n_ranks * (j->n_ranks - 1)), "links");
}

static uint64_t bytes_between(const struct owned *o, const struct link *l)
{
	return o->at[l->from->rank].n_bytes + o->at[l->to->rank].n_bytes;
}

void plan_tell_joint(struct agent *a, const struct joint *j)
{
	const struct owned *o = &j->owned;
	uint64_t total = 2 * (uint64_t)(j->n_ranks - 1) * owned_total(o), planned = 0;
	struct link l = next_link(j, (struct link){j->parts, j->parts});

	for (unsigned rank = 0; rank < j->n_ranks; rank++)
		planned += operation_planned(j->operation, o, rank);
	while (l.from) {
		json_t *event = joint_piece(j, total, planned),
		       *links = json_object_get(event, "links");

		for (unsigned i = 0; l.from && i < LINKS_OF_PIECE; i++, l = next_link(j, l))
			json_array_append_new(
				links, json_pack("{s:s, s:s, s:I, s:I}", "from", l.from->name, "to",
						 l.to->name, "bytes",
						 (json_int_t)bytes_between(o, &l), "planned",
						 (json_int_t)j->operation->planned(o, l.from->rank,
										   l.to->rank)));
		agent_event(a, event);
	}
}

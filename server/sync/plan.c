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

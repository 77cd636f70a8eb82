/*
 * A plan is told in pieces, as the links of a large group do not fit into one packet; each has the sums of all.
 * Bytes on the wire are what the tally of each receiver will have to say, if nothing breaks.
 */
#include "server/sync/plan.h"

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

/* Without links; `wire`: bytes over all of them. */
static json_t *piece(const struct agent *a, const struct transaction *t, unsigned n_links,
		     uint64_t wire)
{
	const struct document *d = t->document;
	uint64_t rate = slowest(a, t);
	double takes = (double)t->expected / (double)rate * 1e9;

	return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:s, s:I, s:I, s:I, s:o, s:o, "
			 "s:i, s:[]}",
			 "event", "plan", "sync", t->sync, "kind", t->is_repair ? "repair" : "push",
			 "buffer", t->head->buffer, "group", d->group, "role", "publisher", "term",
			 (json_int_t)d->pair.term, "number", (json_int_t)d->pair.number, "epoch",
			 (json_int_t)t->epoch, "schedule", "chain", "size", (json_int_t)d->n_bytes,
			 "changed", (json_int_t)t->expected, "total",
			 (json_int_t)(n_links * t->expected), "planned",
			 number_or_null(wire, !a->config->tls), "takes_ns",
			 number_or_null((uint64_t)takes, rate != UINT64_MAX && takes < 9e18),
			 "n_links", (int)n_links, "links");
}

void plan_tell(struct agent *a, const struct transaction *t)
{
	const char *from = a->config->name;
	const struct member *m = t->first, *before = NULL;
	unsigned n_links = 0;
	uint64_t wire = 0;

	for (const struct member *at = m; at; before = at, at = at->next, n_links++)
		wire += over_link(a, t, before, at);
	before = NULL;
	do {
		json_t *event = piece(a, t, n_links, wire), *links = json_object_get(event, "links");

		for (unsigned i = 0; m && i < LINKS_OF_PIECE; i++, m = m->next) {
			json_array_append_new(links,
					      json_pack("{s:s, s:s, s:I, s:I, s:o}", "from", from,
							"to", m->name, "stripes",
							(json_int_t)pairing_count(a, t, before, m),
							"bytes", (json_int_t)t->expected, "planned",
							number_or_null(over_link(a, t, before, m),
								       !a->config->tls)));
			from = m->name;
			before = m;
		}
		agent_event(a, event);
	} while (m);
}

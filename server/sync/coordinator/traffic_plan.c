/*
 * A plan is told in pieces, as the links of a large group do not fit into one packet; each has the sums of all.
 * What is planned is the payload that the byte count of each receiver will have to say, if nothing breaks.
 */
#include "server/sync/coordinator/traffic_plan.h"

#include <math.h>

#include "server/sync/coordinator/stripe_pairing.h"
#include "server/sync/state/transport.h"

/* A link takes 370 bytes at most: with the rest of the event, this stays below JSON_PACKET_SIZE_MAX. */
#define LINKS_OF_PIECE 128

/*
 * Estimated by the slowest that was measured; UINT64_MAX: none was. A member that never was cannot
 * be told apart from the one before it in a chain, which was faster than that.
 */
static uint64_t slowest(const struct agent *a, const struct broadcast *b)
{
	uint64_t rate = b->sync.max_rate ? b->sync.max_rate : UINT64_MAX;

	for (const struct member *m = b->first; m; m = m->next)
		if (a->peers[m->peer].rate && a->peers[m->peer].rate < rate)
			rate = a->peers[m->peer].rate;
	return rate;
}

static json_t *number_or_null(uint64_t n, bool is_known)
{
	return is_known ? json_integer((json_int_t)n) : json_null();
}

static uint64_t over_link(const struct agent *a, const struct broadcast *b,
			  const struct member *from, const struct member *to)
{
	return b->transport->planned(&b->ranges, stripe_pairing_count(a, b, from, to));
}

/* Without links. */
static json_t *piece(const struct broadcast *b, const struct traffic_plan *p)
{
	const struct document *d = b->sync.document;
	const bool takes_known = p->takes_ns < 9e18;

	return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:s, s:s, s:s, s:I, s:I, s:I, "
			 "s:I, s:o, s:i, s:[]}",
			 "event", "plan", "sync", b->sync.id, "kind", metrics_kind(b->sync.kind),
			 "buffer", b->sync.replica->buffer, "group", d->group, "role", "publisher",
			 "term", (json_int_t)d->version_id.term, "number",
			 (json_int_t)d->version_id.number, "epoch", (json_int_t)b->sync.epoch,
			 "schedule", b->transport->is_nccl ? "ring" : "chain", "engine",
			 b->transport->name, "by",
			 patch_chain_way(p->has_patch, p->bytes, d->n_bytes), "size",
			 (json_int_t)d->n_bytes, "changed", (json_int_t)p->bytes, "total",
			 (json_int_t)p->total, "planned", (json_int_t)p->planned, "takes_ns",
			 number_or_null(takes_known ? (uint64_t)p->takes_ns : 0, takes_known),
			 "n_links", (int)json_array_size(p->links), "links");
}

void traffic_plan_add(const struct agent *a, const struct broadcast *b, struct traffic_plan *p)
{
	const struct member *before = NULL;
	uint64_t rate = slowest(a, b);

	if (!p->links)
		p->links = json_array();
	p->has_patch |= b->by_patch;
	p->bytes += b->expected;
	p->takes_ns += rate == UINT64_MAX ? INFINITY : (double)b->expected / (double)rate * 1e9;
	for (const struct member *m = b->first; m; before = m, m = m->next) {
		const char *from = before ? before->name : a->config->name;
		uint64_t planned = over_link(a, b, before, m);

		json_array_append_new(p->links,
				      json_pack("{s:s, s:s, s:I, s:I, s:I}", "from", from, "to",
						m->name, "stripes",
						(json_int_t)stripe_pairing_count(a, b, before, m),
						"bytes", (json_int_t)b->expected, "planned",
						(json_int_t)planned));
		p->total += b->expected;
		p->planned += planned;
	}
}

void traffic_plan_deinit(struct traffic_plan *p)
{
	json_decref(p->links);
	*p = (struct traffic_plan){0};
}

void traffic_plan_tell(struct agent *a, const struct broadcast *b, struct traffic_plan *p)
{
	size_t n = json_array_size(p->links), i = 0;

	do {
		json_t *event = piece(b, p), *links = json_object_get(event, "links");

		for (unsigned k = 0; i < n && k < LINKS_OF_PIECE; i++, k++)
			json_array_append(links, json_array_get(p->links, i));
		agent_event(a, event);
	} while (i < n);
	traffic_plan_deinit(p);
}

/* --- Collectives -------------------------------------------------------------------------------- */

struct link {
	const struct member *from, *to;
};

static uint64_t over(const struct collective *c, const struct link *l)
{
	return c->op->planned(&c->flows, l->from->rank, l->to->rank);
}

static bool is_link(const struct collective *c, const struct link *l)
{
	return l->from != l->to && l->from->is_in_epoch && l->to->is_in_epoch && over(c, l) > 0;
}

/* From one to each other one that it gives anything, then from the next; NULL ends: there are no more. */
static struct link next_link(const struct collective *c, struct link l)
{
	const struct member *end = c->sync.members + c->sync.n_members;

	do {
		if (++l.to == end) {
			l.from++;
			l.to = c->sync.members;
		}
	} while (l.from < end && !is_link(c, &l));
	return l.from < end ? l : (struct link){0};
}

static struct link first_link(const struct collective *c)
{
	return next_link(c, (struct link){c->sync.members, c->sync.members});
}

static uint64_t bytes_of(const struct collective *c, const struct link *l)
{
	return c->op->bytes(&c->flows, l->from->rank, l->to->rank);
}

/* Sums over all links. */
struct sums {
	uint64_t n_links;
	uint64_t total;
	uint64_t planned;
	uint64_t most; /* out of one node */
};

static struct sums sum_up(const struct collective *c)
{
	uint64_t out[COLLECTIVE_OP_NODES_MAX] = {0};
	struct sums s = {0};

	for (struct link l = first_link(c); l.from; l = next_link(c, l)) {
		uint64_t n = bytes_of(c, &l), *all = &out[l.from->rank];

		s.n_links++;
		s.total += n;
		s.planned += over(c, &l);
		*all += n;
		s.most = *all > s.most ? *all : s.most;
	}
	return s;
}

static json_t *collective_piece(const struct collective *c, const struct sums *s)
{
	const struct document *d = c->sync.document;
	double takes = c->sync.max_rate ? (double)s->most / (double)c->sync.max_rate * 1e9 : 9e18;

	return json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:s, s:s, s:I, s:I, s:I, s:I, "
			 "s:o, s:I, s:[]}",
			 "event", "plan", "sync", c->sync.id, "kind", metrics_kind(c->sync.kind),
			 "buffer", c->sync.replica->buffer, "group", d->group, "role", "publisher",
			 "term", (json_int_t)d->version_id.term, "number",
			 (json_int_t)d->version_id.number, "epoch", (json_int_t)c->sync.epoch,
			 "schedule", c->op->schedule, "engine", c->op->transport->name, "size",
			 (json_int_t)c->size, "changed", (json_int_t)c->op->changed(&c->flows),
			 "total", (json_int_t)s->total, "planned", (json_int_t)s->planned,
			 "takes_ns", number_or_null((uint64_t)takes, takes < 9e18), "n_links",
			 (json_int_t)s->n_links, "links");
}

static json_t *link_row(const struct collective *c, const struct link *l)
{
	return json_pack("{s:s, s:s, s:I, s:I}", "from", l->from->name, "to", l->to->name, "bytes",
			 (json_int_t)bytes_of(c, l), "planned", (json_int_t)over(c, l));
}

void traffic_plan_tell_collective(struct agent *a, const struct collective *c)
{
	const struct sums s = sum_up(c);
	struct link l = first_link(c);

	do { /* a plan without links is one */
		json_t *event = collective_piece(c, &s), *links = json_object_get(event, "links");

		for (unsigned i = 0; l.from && i < LINKS_OF_PIECE; i++, l = next_link(c, l))
			json_array_append_new(links, link_row(c, &l));
		agent_event(a, event);
	} while (l.from);
}

#include "server/sync/coordinator/stripe_pairing.h"

#include <errno.h>

#include "server/sync/base/json_fields.h"
#include "server/sync/state/transport.h"

#define TORN_MAX 2 /* stripes that may break at a node's address before it does without that */

static unsigned n_addresses(const struct agent *a, const struct member *m)
{
	return m ? m->n_ways : a->config->n_data_addresses;
}

static bool is_torn(const struct broadcast *b, const struct member *m, unsigned place)
{
	return (m ? m->n_torn : b->n_torn)[place] >= TORN_MAX;
}

/* Each at a rate that does not look like one that stalls. */
static unsigned n_at_rate(const struct broadcast *b)
{
	uint64_t n = b->sync.max_rate / STRIPES_RATE_MIN;

	return !b->sync.max_rate || n > STRIPES_MAX ? STRIPES_MAX : n ? (unsigned)n : 1;
}

unsigned stripe_pairing_of(const struct agent *a, const struct broadcast *b,
			   const struct member *from, const struct member *to,
			   uint8_t ret[STRIPES_MAX])
{
	unsigned n_from = n_addresses(a, from), n_to = n_addresses(a, to);
	unsigned n_both = n_from < n_to ? n_from : n_to, n = 0;

	if (!b->transport->has_stripes)
		n_both = 1;
	for (unsigned i = 0; i < n_both && n < n_at_rate(b); i++)
		if (!is_torn(b, from, i) && !is_torn(b, to, i))
			ret[n++] = (uint8_t)i;
	if (n == 0) /* there is no better one */
		ret[n++] = 0;
	return n;
}

unsigned stripe_pairing_count(const struct agent *a, const struct broadcast *b,
			      const struct member *from, const struct member *to)
{
	uint8_t places[STRIPES_MAX];

	return stripe_pairing_of(a, b, from, to, places);
}

json_t *stripe_pairing_tell(const struct agent *a, const struct broadcast *b,
			    const struct member *from, const struct member *to)
{
	uint8_t places[STRIPES_MAX];
	unsigned n = stripe_pairing_of(a, b, from, to, places);
	json_t *all;

	if (n == 1 && places[0] == 0)
		return NULL;
	all = json_array();
	for (unsigned i = 0; i < n; i++) {
		const struct data_way *way = &to->ways[places[i]];

		json_array_append_new(all,
				      json_pack("{s:s, s:I, s:i}", "address", way->address, "port",
						(json_int_t)way->port, "from", (int)places[i]));
	}
	return all;
}

int stripe_pairing_read(struct member *m, const json_t *opened)
{
	json_t *all;
	const json_t *way;
	size_t i;

	if (field_array(opened, "stripes", STRIPES_MAX, &all) < 0 ||
	    json_array_size(all) != m->n_ways)
		return -EBADMSG;
	json_array_foreach(all, i, way) if (data_way_read(way, &m->ways[i]) < 0) return -EBADMSG;
	return 0;
}

void stripe_pairing_note_broken(struct broadcast *b, struct member *from, struct member *to,
				const json_t *failed)
{
	uint64_t place;

	if (!b->torn.to && field_number(failed, "stripe", STRIPES_MAX - 1, &place) == 0) {
		b->torn.from = from;
		b->torn.to = to;
		b->torn.place = (unsigned)place;
	}
}

static void note_torn(struct agent *a, struct broadcast *b, struct member *m, unsigned place)
{
	uint8_t *n = &(m ? m->n_torn : b->n_torn)[place];

	if (*n < TORN_MAX && ++*n == TORN_MAX)
		agent_log(a, "warning",
			  "sync %s: two epochs broke over the address of %s that has the place %u of its "
			  "data-address; the rest goes without it",
			  b->sync.id, m ? m->name : a->config->name, place + 1);
}

void stripe_pairing_settle(struct agent *a, struct broadcast *b)
{
	if (b->torn.to) {
		note_torn(a, b, b->torn.from, b->torn.place);
		note_torn(a, b, b->torn.to, b->torn.place);
	}
	b->torn.to = NULL;
}

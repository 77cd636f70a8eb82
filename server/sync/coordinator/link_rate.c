#include "server/sync/coordinator/link_rate.h"

#include <stdlib.h>

#include "server/sync/coordinator/chain.h"
#include "server/sync/state/transport.h"

#define LINK_RATE ((uint64_t)8 << 20) /* bytes/s, of a link that was never measured */
/*
 * Age of an epoch before a link of it counts as slow; and time that the rest of one must take to be
 * worth another one.
 */
#define LAG_NS (3 * SECOND)
#define MEASURED_MIN ((uint64_t)8 << 20) /* bytes: fewer say nothing of a link */
#define RATE_MIN ((uint64_t)256 << 10) /* bytes/s: the deadline of the whole assumes no less */

static int link_rate_compare(const void *x, const void *y)
{
	const uint64_t *a = x, *b = y;

	return *a < *b ? -1 : *a > *b;
}

/* `ret_n`: of how many. */
static uint64_t median_of(const struct agent *a, const struct broadcast *b, unsigned *ret_n)
{
	uint64_t *rates = calloc(b->sync.n_members + 1, sizeof(*rates)), median;
	unsigned n = 0;

	*ret_n = 0;
	if (!rates)
		return 0;
	for (unsigned i = 0; i < b->sync.n_members; i++)
		if (b->sync.members[i].peer != NO_PEER && a->peers[b->sync.members[i].peer].rate)
			rates[n++] = a->peers[b->sync.members[i].peer].rate;
	qsort(rates, n, sizeof(*rates), link_rate_compare);
	median = rates[n / 2];
	free(rates);
	*ret_n = n;
	return median;
}

uint64_t link_rate_median(const struct agent *a, const struct broadcast *b)
{
	unsigned n;

	return median_of(a, b, &n);
}

/*
 * A member as slow as the one before it was held up by that one: its own rate shows another time,
 * when it comes before those that were measured.
 */
void link_rate_measure(struct agent *a, const struct broadcast *b, struct member *m)
{
	struct peer *p = &a->peers[m->peer];
	uint64_t took = agent_now(a) - b->epoch_ns, rate;
	const struct member *from = chain_before(b, m);

	/* A ring is as fast for all as for the slowest of them. */
	if (m->measured || b->expected < MEASURED_MIN || !took || b->sync.max_rate ||
	    b->transport->is_nccl)
		return;
	rate = (uint64_t)((double)b->expected * 1e9 / (double)took);
	m->measured = rate;
	if (rate < RATE_MIN)
		rate = RATE_MIN;
	if (!from || (from->measured && rate < from->measured / 2))
		p->rate = rate;
	else if (p->rate && rate > p->rate)
		p->rate = rate;
}

static uint64_t average(const struct agent *a, const struct broadcast *b, const struct member *m)
{
	return (uint64_t)((double)m->done * 1e9 / (double)(agent_now(a) - b->epoch_ns + 1));
}

void link_rate_note(struct agent *a, const struct broadcast *b, const struct member *m)
{
	uint64_t rate = average(a, b, m);

	if (!b->sync.max_rate && agent_now(a) - b->epoch_ns >= LAG_NS)
		a->peers[m->peer].rate = rate < RATE_MIN ? RATE_MIN : rate;
}

/* Bytes that could reach the next member: those that this one has, or that leave this node. */
static uint64_t could_get(const struct agent *a, const struct broadcast *b,
			  const struct member *before)
{
	uint64_t rate, max = b->sync.max_rate ? b->sync.max_rate : UINT64_MAX;
	unsigned n;

	if (before)
		return before->measured ? before->measured : average(a, b, before);
	rate = median_of(a, b, &n);
	if (2 * n < b->sync.n_members) /* few, and those perhaps for their slowness */
		rate = LINK_RATE;
	return rate < max ? rate : max;
}

/* A member that has all waits to send it on. */
static bool keeps_waiting(const struct agent *a, const struct broadcast *b,
			  const struct member *before, const struct member *m)
{
	uint64_t rate = average(a, b, m), left = b->expected - m->done;

	return before && before->done == b->expected &&
	       (double)left * 1e9 > (double)rate * (double)LAG_NS;
}

struct member *link_rate_laggard(const struct agent *a, const struct broadcast *b)
{
	struct member *before = NULL;

	if (agent_now(a) - b->epoch_ns < LAG_NS || b->transport->is_nccl)
		return NULL;
	for (struct member *m = b->first; m; before = m, m = m->next) {
		if (m->state != MEMBER_MOVING || m->done == b->expected)
			continue;
		if (keeps_waiting(a, b, before, m) ||
		    (m->next && !m->is_late && average(a, b, m) < could_get(a, b, before) / 2))
			return m;
	}
	return NULL;
}

/*
 * It gets less than half of what it could, or nothing. It could get what the one before it in the chain got, as that is
 * what is given on; or, as the first, what members got when they were last measured. Those behind it are as slow, and
 * only wait.
 */
bool link_rate_is_slow(const struct agent *a, const struct broadcast *b, const struct member *m)
{
	const struct member *from = chain_before(b, m);
	uint64_t could = link_rate_median(a, b);

	if (m->state != MEMBER_MOVING || m->done == b->expected ||
	    (from ? from->done : b->expected) <= m->done)
		return false;
	if (member_is_stale(a, m))
		return true;
	if (from)
		could = from->measured ? from->measured : member_rate(a, from);
	else if (b->sync.max_rate && b->sync.max_rate < could)
		could = b->sync.max_rate;
	return m->rate && m->rate < could / 2;
}

const struct member *link_rate_held_up(const struct broadcast *b)
{
	uint64_t could = b->expected;

	for (const struct member *m = b->first; m; could = m->done, m = m->next)
		if (m->state == MEMBER_MOVING && m->done < could)
			return m;
	return NULL;
}

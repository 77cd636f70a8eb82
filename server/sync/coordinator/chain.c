/*
 * The chain goes from this node to those that lack something, in the order of the group; whoever stood at a link
 * that broke, or was slow when last measured, comes last. A link's two ends accuse each other and nobody else
 * saw it: the receiver is blamed, and a sender that is accused again. Two that a link broke between are not
 * neighbours again where there is any other order; where there is none, and it broke twice, one of them waits for
 * the next epoch. Whoever was blamed too often waits until those that were less have their bytes, and after too many
 * epochs the most blamed are lost, one after the other: a few that break whatever they are in do not keep a version
 * from the rest.
 */
#include "server/sync/coordinator/chain.h"

#include <limits.h>

unsigned chain_n_faults(const struct member *m)
{
	return m->n_blamed + m->n_corrupt;
}

/* Larger comes later. */
static unsigned chain_rank(const struct agent *a, const struct member *m, uint64_t median)
{
	uint64_t rate = a->peers[m->peer].rate;

	return 3 * chain_n_faults(m) + (m->is_late || (rate && rate * 2 < median) ? 2
					: rate                                    ? 1
										  : 0);
}

/* The slowest that was measured is the last: no member is behind a slower one. */
static bool comes_before(const struct agent *a, const struct member *x, const struct member *y,
			 uint64_t median)
{
	unsigned of_x = chain_rank(a, x, median), of_y = chain_rank(a, y, median);

	return of_x < of_y || (of_x == of_y && a->peers[x->peer].rate > a->peers[y->peer].rate);
}

/* Counts how often the link between these two broke, in either direction. */
static unsigned n_breaks(const struct broadcast *bc, const struct member *x, const struct member *y)
{
	for (unsigned i = 0; i < bc->n_broken; i++) {
		const struct broken *b = &bc->broken[i];

		if ((b->ends[0] == x && b->ends[1] == y) || (b->ends[0] == y && b->ends[1] == x))
			return b->n_times;
	}
	return 0;
}

static unsigned n_breaks_of(const struct broadcast *b, const struct member *m)
{
	unsigned n = 0;

	for (unsigned i = 0; i < b->n_broken; i++)
		if (b->broken[i].ends[0] == m || b->broken[i].ends[1] == m)
			n += b->broken[i].n_times;
	return n;
}

/* The last place between two that it can talk to, the end being one; NULL: there is none. */
static struct member **find_place(struct broadcast *b, const struct member *m)
{
	struct member **place = NULL, *before = NULL;

	for (struct member **at = &b->first;; at = &before->next) {
		if (!n_breaks(b, before, m) && (!*at || !n_breaks(b, m, *at)))
			place = at;
		if (!*at)
			return place;
		before = *at;
	}
}

/* Puts the chain into an order in which no member is behind one that it could not connect to. */
static void go_around_broken(struct broadcast *b)
{
	struct member *rest = b->first, *last = NULL, **at;

	b->first = NULL;
	for (struct member **end = &b->first; rest; end = &last->next) {
		for (at = &rest; *at && n_breaks(b, last, *at);)
			at = &(*at)->next;
		if (!*at)
			break;
		last = *at;
		*at = last->next;
		last->next = NULL;
		*end = last;
	}
	while (rest) {
		struct member *m = rest;

		rest = m->next;
		at = find_place(b, m);
		if (!at && last && n_breaks_of(b, m) > 1)
			continue; /* it waits */
		if (!at)
			at = last ? &last->next : &b->first;
		m->next = *at;
		*at = m;
		for (last = m; last->next;)
			last = last->next;
	}
}

bool chain_is_behind(const struct broadcast *b, struct member *m)
{
	return m->state == MEMBER_READY && broadcast_missing(b, m)->n;
}

/* A member at too many broken links waits while there are better ones, so that those get on. */
static unsigned most_blamed(const struct broadcast *b)
{
	unsigned least = UINT_MAX;

	for (unsigned i = 0; i < b->sync.n_members; i++)
		if (chain_is_behind(b, &b->sync.members[i]) && b->sync.members[i].n_blamed < least)
			least = b->sync.members[i].n_blamed;
	return least > BLAMED_MAX ? least : BLAMED_MAX;
}

void chain_order(struct agent *a, struct broadcast *b, uint64_t median)
{
	unsigned max = most_blamed(b);

	b->first = NULL;
	for (unsigned i = 0; i < b->sync.n_members; i++) {
		struct member *m = &b->sync.members[i], **at = &b->first;

		if (!chain_is_behind(b, m) || m->n_blamed > max)
			continue;
		while (*at && !comes_before(a, m, *at, median))
			at = &(*at)->next;
		m->next = *at;
		*at = m;
	}
	if (b->n_broken)
		go_around_broken(b);
}

struct member *chain_before(const struct broadcast *b, const struct member *m)
{
	struct member *at = b->first;

	while (at && at->next != m)
		at = at->next;
	return at;
}

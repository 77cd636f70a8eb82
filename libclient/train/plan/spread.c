#include "libclient/train/plan/spread.h"

struct spread spread_of_rank(const struct weightd_plan *p, uint32_t node, uint32_t rank,
			     struct plan_interval within)
{
	return (struct spread){
		.plan = p, .within = within, .node = node, .rank = rank, .n_ranks = rank + 1};
}

struct spread spread_of_node(const struct weightd_plan *p, uint32_t node,
			     struct plan_interval within)
{
	struct spread s = spread_of_rank(p, node, 0, within);

	if (!plan_is_replicated(p))
		s.n_ranks = p->n_ranks;
	return s;
}

/* The intersection with a piece; empty: begin >= end. */
static struct plan_piece part_of(const struct plan_piece *piece, struct plan_interval within)
{
	struct plan_piece part = *piece;

	if (part.interval.begin < within.begin)
		part.interval.begin = within.begin;
	if (part.interval.end > within.end)
		part.interval.end = within.end;
	part.at += part.interval.begin - piece->interval.begin;
	part.received += part.interval.begin - piece->interval.begin;
	return part;
}

bool spread_next(struct spread *s, struct plan_piece *ret)
{
	for (; s->rank < s->n_ranks; s->rank++, s->piece = 0) {
		const struct plan_pieces *pieces = plan_updates(s->plan, s->node, s->rank);

		while (s->piece < pieces->n) {
			*ret = part_of(&pieces->pieces[s->piece++], s->within);
			if (ret->interval.begin < ret->interval.end)
				return true;
		}
	}
	return false;
}

uint64_t spread_count(struct spread s)
{
	struct plan_piece part;
	uint64_t n = 0;

	while (spread_next(&s, &part))
		n += part.interval.end - part.interval.begin;
	return n;
}

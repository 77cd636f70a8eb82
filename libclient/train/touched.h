/*
 * Touched parameters
 *
 * The intervals of the flat range that a step changes: parameters that some rank has a gradient of. The others are neither
 * read nor written, on any rank.
 */
#pragma once

#include "libclient/train/engine/arena.h"

struct touched {
	struct plan_interval *intervals; /* in order, disjoint */
	uint32_t n;
};

int touched_init(struct touched *t, const struct weightd_plan *p);
void touched_deinit(struct touched *t);

/* The bitmap by tensor behind a saved state: no gradient. */
uint8_t *touched_bitmap(const struct weightd_plan *p, struct control_saved *saved);
/* Behind a summary: the weights of the node's ranks, then a bitmap by tensor: no gradient of any of them. */
double *touched_weights(struct control_summary *summary);
uint8_t *touched_summary_bitmap(const struct weightd_plan *p, struct control_summary *summary);
/* Writes that bitmap for this node, and returns the number of such parameters. All ranks have handed over the step. */
uint32_t touched_summarize(const struct arena *a, uint64_t step, uint8_t *ret_bits);

/*
 * Finds them by what the ranks saved, or where nodes sum gradients by the summaries of all nodes. A rank that has not handed
 * over the step, or a node whose summary is not here yet, counts as one with all gradients. Returns `t`, or NULL: the whole
 * range is touched.
 */
const struct touched *touched_find(struct touched *t, const struct arena *a, uint64_t step);

/* The first touched part of an interval; empty: there is none. NULL: the interval itself. */
struct plan_interval touched_first(const struct touched *t, struct plan_interval within);
/* The first one behind `part`. */
static inline struct plan_interval touched_next(const struct touched *t, struct plan_interval within,
						struct plan_interval part)
{
	return touched_first(t, (struct plan_interval){part.end, within.end});
}
/*
 * A walk over the touched parts of a rank's pieces, in the order of their places. The caller may narrow it before the first
 * part.
 */
struct touched_parts {
	const struct touched *touched;
	const struct plan_piece *piece, *end;
	struct plan_interval places; /* that are left */
};
static inline struct touched_parts touched_parts(const struct touched *t,
						 const struct plan_pieces *pieces)
{
	return (struct touched_parts){t, pieces->pieces, pieces->pieces + pieces->n, {0, UINT64_MAX}};
}
/* Those of one bucket; UINT32_MAX: of all. */
struct touched_parts touched_parts_of(const struct touched *t, const struct plan_pieces *pieces,
				      uint32_t bucket);

/* The part of the first piece that is left; empty: begin >= end. */
static inline struct plan_interval touched_parts_left(const struct touched_parts *w)
{
	struct plan_interval left = w->piece->interval;
	uint64_t end = w->piece->at + (left.end - left.begin);

	if (end > w->places.end)
		left.end -= end - w->places.end;
	if (w->piece->at < w->places.begin)
		left.begin += w->places.begin - w->piece->at;
	return left;
}

/* False: there is none behind the last one. Inline: the journal asks for each of its blocks. */
static inline bool touched_parts_next(struct touched_parts *w, struct plan_piece *ret)
{
	for (; w->piece < w->end && w->piece->at < w->places.end; w->piece++) {
		struct plan_interval part = touched_parts_left(w);

		if (w->touched)
			part = touched_first(w->touched, part);
		if (part.begin >= part.end)
			continue;
		ret->interval = part;
		ret->at = w->piece->at + (part.begin - w->piece->interval.begin);
		ret->received = w->piece->received + (part.begin - w->piece->interval.begin);
		w->places.begin = ret->at + (part.end - part.begin);
		return true;
	}
	return false;
}

/* Touched elements of an interval. */
uint64_t touched_count(const struct touched *t, struct plan_interval within);

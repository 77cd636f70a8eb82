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

/*
 * Finds them by what the ranks saved. A rank that has not handed over the step counts as one with all gradients. Returns
 * `t`, or NULL: the whole range is touched.
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
/* Touched elements of an interval. */
uint64_t touched_count(const struct touched *t, struct plan_interval within);

/*
 * Offsets of the control words. Words of two ranks are never in one cache line; logs begin at pages.
 */
#include "libclient/train/plan/control.h"

#define LINE 64

_Static_assert(sizeof(struct control_head) <= PLAN_PAGE, "the head has a page");
_Static_assert(sizeof(struct control_rank) % LINE == 0, "words of two ranks are in two lines");
_Static_assert(sizeof(struct control_status) == LINE, "the status of a rank is a line");
_Static_assert(sizeof(struct control_bucket) % LINE == 0, "words of two ranks are in two lines");

static uint64_t align_up(uint64_t n, uint64_t align)
{
	return (n + align - 1) / align * align;
}

struct control_layout control_layout(const struct weightd_plan *p)
{
	uint64_t n_ranks = p->n_ranks;
	uint64_t n_buckets = p->form == WEIGHTD_STEP_TWO_PHASE ? p->n_buckets : 0;
	struct control_layout l = {.ranks = PLAN_PAGE};

	l.status = l.ranks + n_ranks * sizeof(struct control_rank);
	l.buckets = l.status + n_ranks * sizeof(struct control_status);
	l.rooms = l.buckets + n_ranks * n_buckets * sizeof(struct control_bucket);
	l.summaries = l.rooms + n_ranks * p->n_rooms * sizeof(struct control_word);
	l.summary_stride = align_up(sizeof(struct control_summary) + n_ranks * sizeof(double) +
					    (p->n_tensors + 7) / 8,
				    LINE);
	l.saved = l.summaries;
	if (p->n_nodes > 1)
		l.saved += n_ranks * 2 * p->n_nodes * l.summary_stride;
	l.saved_stride = align_up(
		sizeof(struct control_saved) + p->state_size + (p->n_tensors + 7) / 8, LINE);
	l.logs = align_up(l.saved + n_ranks * CONTROL_SAVED(p) * l.saved_stride, PLAN_PAGE);
	l.log_rounded = (1 + (uint64_t)p->n_moments) * PLAN_BLOCK * sizeof(float);
	l.log_stride = align_up(l.log_rounded +
					(plan_has_master(p) ? PLAN_BLOCK * sizeof(uint16_t) : 0),
				PLAN_PAGE);
	l.size = l.logs + n_ranks * l.log_stride;
	return l;
}

/*
 * Parts of the job. All ranges of fp32 end with the same padding, so that the sizes of kinds are whole multiples of each
 * other: (2 + n_ranks + 1) ranges for the shared Adam of a node.
 */
#include "ipc/base/num.h"
#include "libclient/train/plan/build.h"
#include "libclient/train/plan/control.h"
#include "libclient/train/plan/strategy.h"

/* Huge pages work for ranges that begin anywhere; those that begin at their multiples share none with another rank. */
static uint64_t range_stride(uint64_t used)
{
	uint64_t page = (used + PLAN_PAGE - 1) / PLAN_PAGE * PLAN_PAGE;
	uint64_t huge = (used + PLAN_HUGE - 1) / PLAN_HUGE * PLAN_HUGE;

	return huge - used <= used / 1024 ? huge : page;
}

static void add_part(struct weightd_plan *p, struct plan_part part)
{
	if (part.used)
		p->parts[p->n_parts++] = part;
}

void build_parts(struct weightd_plan *p)
{
	uint64_t flat = p->n_elements * 4, stride = range_stride(flat);
	uint64_t journal = control_layout(p).size;
	uint32_t n_updates = plan_is_replicated(p) ? p->n_ranks : 1;
	bool two_phase = p->form == WEIGHTD_STEP_TWO_PHASE;

	add_part(p,
		 (struct plan_part){WEIGHTD_KIND_JOURNAL, 1, journal, journal, WEIGHTD_REPLICATE});
	add_part(p, (struct plan_part){WEIGHTD_KIND_PARAM, p->n_copies, flat, stride,
				       WEIGHTD_REPLICATE});
	add_part(p, (struct plan_part){WEIGHTD_KIND_GRAD, p->n_ranks * p->n_slots, flat, stride,
				       WEIGHTD_PARTIAL});
	add_part(p, (struct plan_part){WEIGHTD_KIND_REDUCED, 1, two_phase ? flat : 0, stride,
				       WEIGHTD_SHARD});
	add_part(p, (struct plan_part){WEIGHTD_KIND_MOMENTS, n_updates, p->n_moments * flat,
				       p->n_moments * stride, p->row->update});
	/* The ranks have values of their own: no placement describes them. */
	add_part(p, (struct plan_part){WEIGHTD_KIND_BUFFER, p->n_ranks * 2, p->buffer_size,
				       range_stride(p->buffer_size), 0});
}

/*
 * Parts of the job. All ranges of one element size end with the same padding. With S elements of n ranks, the shared Adam
 * of a node has
 *	fp32			4 S (PARAM) + 4 S n (GRAD) + 8 S (MOMENTS)
 *	16 bits			2 S (PARAM) + 2 S n (GRAD) + 4 S (MASTER) + 8 S (MOMENTS)
 *	16 bits, fp32 GRAD	2 S (PARAM) + 4 S n (GRAD) + 4 S (MASTER) + 8 S (MOMENTS)
 * bytes, and 4 S (REDUCED) in two phases.
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
	uint64_t flat = p->n_elements * sizeof(float);
	uint64_t state = p->n_state * sizeof(float), state_stride = range_stride(state);
	uint64_t received = p->n_received * sizeof(float);
	uint64_t param = (plan_shards_params(p) ? p->n_state : p->n_elements) *
			 plan_element_size(p, WEIGHTD_KIND_PARAM);
	uint64_t grad = (plan_pools_grads(p) ? p->n_bucket : p->n_elements) *
			plan_element_size(p, WEIGHTD_KIND_GRAD);
	uint64_t reduced = plan_pools_grads(p) ? state : flat;
	uint64_t staged = plan_pools_grads(p) && plan_sums_nodes(p) ? p->n_bucket * sizeof(float)
								    : 0;
	uint64_t gathered = 0;
	uint64_t journal = control_layout(p).size;
	uint32_t n_updates = plan_is_replicated(p) ? p->n_ranks : 1;
	bool two_phase = p->form == WEIGHTD_STEP_TWO_PHASE;

	for (uint32_t i = 0; i < p->n_rooms; i++)
		gathered += p->rooms[i].size;

	add_part(p,
		 (struct plan_part){WEIGHTD_KIND_JOURNAL, 1, journal, journal, WEIGHTD_REPLICATE});
	add_part(p, (struct plan_part){WEIGHTD_KIND_PARAM, p->n_copies, param, range_stride(param),
				       plan_shards_params(p) ? WEIGHTD_SHARD : WEIGHTD_REPLICATE});
	add_part(p, (struct plan_part){WEIGHTD_KIND_GRAD, p->n_ranks * p->n_slots, grad,
				       range_stride(grad), WEIGHTD_PARTIAL});
	add_part(p, (struct plan_part){WEIGHTD_KIND_REDUCED, 1, two_phase ? reduced : 0,
				       range_stride(reduced), WEIGHTD_SHARD});
	add_part(p, (struct plan_part){WEIGHTD_KIND_RECEIVED, p->n_nodes, received,
				       range_stride(received), WEIGHTD_PARTIAL});
	add_part(p,
		 (struct plan_part){WEIGHTD_KIND_MASTER, n_updates, plan_has_master(p) ? state : 0,
				    state_stride, p->row->update});
	add_part(p, (struct plan_part){WEIGHTD_KIND_MOMENTS, n_updates, p->n_moments * state,
				       p->n_moments * state_stride, p->row->update});
	/* The ranks have values of their own: no placement describes them. */
	add_part(p, (struct plan_part){WEIGHTD_KIND_BUFFER, p->n_ranks * 2, p->buffer_size,
				       range_stride(p->buffer_size), 0});
	add_part(p, (struct plan_part){WEIGHTD_KIND_FROZEN, 1, p->frozen_size,
				       range_stride(p->frozen_size), WEIGHTD_REPLICATE});
	add_part(p, (struct plan_part){WEIGHTD_KIND_STAGED, 2, staged, range_stride(staged),
				       WEIGHTD_SHARD});
	add_part(p, (struct plan_part){WEIGHTD_KIND_GATHERED, 1, gathered, gathered,
				       WEIGHTD_REPLICATE});
}

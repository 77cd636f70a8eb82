/*
 * Saved states: slots in the job
 *
 * The slot of a step is written before the rank's word of that step, and no slot that a rank may still read: the
 * step before it, for a restart, and those of updates in flight have slots of their own.
 */
#include "libclient/train/saved.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "libclient/train/plan/sentence.h"
#include "libclient/train/touched.h"
#include "libclient/train/trainer.h"

static uint8_t *buffers_at(const struct weightd_train *t, uint64_t step)
{
	return t->arena.buffers + (step % 2) * t->arena.buffer_stride;
}

static void save_unused(const struct weightd_plan *p, const struct weightd_update *u,
			struct control_saved *saved)
{
	uint8_t *bits = touched_bitmap(p, saved);

	memset(bits, 0, (p->n_tensors + 7) / 8);
	saved->n_unused = 0;
	for (uint32_t i = 0; u->unused && i < p->n_tensors; i++)
		if (u->unused[i] && plan_is_trained(&p->tensors[i])) {
			bits[i / 8] |= (uint8_t)(1 << i % 8);
			saved->n_unused++;
		}
}

void saved_write_buffers(const struct weightd_train *t, uint64_t step)
{
	if (t->buffers)
		memcpy(buffers_at(t, step), t->buffers, t->plan->buffer_size);
}

void saved_write(struct weightd_train *t, const struct weightd_update *u, uint64_t step)
{
	struct control_saved *saved = arena_saved(&t->arena, t->arena.rank, step);

	saved->state_size = u->state_size;
	saved->weight = u->weight;
	saved->max_norm = u->max_norm;
	memcpy(saved->lr, u->lr, t->plan->n_groups * sizeof(*saved->lr));
	saved->has_nan = u->has_loss && isnan(u->loss);
	saved->n_asked = units_asked(t);
	if (u->state_size)
		memcpy(saved + 1, u->state, u->state_size);
	saved_write_buffers(t, step);
	save_unused(t->plan, u, saved);
	__atomic_store_n(&saved->step, step, __ATOMIC_RELEASE);
}

void saved_read_buffers(struct weightd_train *t, uint64_t step)
{
	if (t->buffers)
		memcpy(t->buffers, buffers_at(t, step), t->plan->buffer_size);
}

int saved_restore(struct weightd_train *t, uint64_t step)
{
	const struct control_saved *saved = arena_saved(&t->arena, t->arena.rank, step);

	if (!step)
		return 0;
	if (saved->step != step || saved->state_size > t->plan->state_size)
		return train_fail(-EUCLEAN,
				  "the journal of job '%s' was overwritten: it has no state of "
				  "rank %u in step %" PRIu64 "; remove the job and start a new job",
				  weightd_job_name(t->arena.job), t->arena.rank, step);
	saved_read_buffers(t, step);
	return 0;
}

/*
 * The loss scale: its arithmetic
 *
 * That of torch.amp.GradScaler: fp32 times a double, rounded to fp32. A scale that would not be a normal number stays: torch
 * keeps one that would be infinite, and lets it shrink to 0, of which no step recovers.
 */
#include "libclient/train/scale.h"

#include <math.h>

struct control_scale scale_at(const struct arena *a, uint64_t step)
{
	if (!step)
		return (struct control_scale){.scale = (float)a->plan->scaling.init};
	return arena_rank(a, a->rank)->scales[step % 2];
}

static float scale_times(float scale, double factor)
{
	float scaled = (float)(scale * factor);

	return isnormal(scaled) ? scaled : scale;
}

void scale_commit(const struct arena *a, uint64_t step, bool has_nan, bool has_overflowed)
{
	const struct weightd_scaling *s = &a->plan->scaling;
	struct control_scale next = scale_at(a, step - 1);

	next.has_overflowed = has_overflowed;
	if (has_overflowed) {
		next.scale = scale_times(next.scale, s->backoff);
		next.n_finite = 0;
	} else if (!has_nan && ++next.n_finite >= s->interval) { /* more: of a checkpoint */
		next.scale = scale_times(next.scale, s->growth);
		next.n_finite = 0;
	}
	arena_rank(a, a->rank)->scales[step % 2] = next;
}

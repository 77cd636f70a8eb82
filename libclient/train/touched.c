#include "libclient/train/touched.h"

#include <errno.h>
#include <stdlib.h>

#include "libclient/train/plan/sentence.h"

int touched_init(struct touched *t, const struct weightd_plan *p)
{
	*t = (struct touched){.intervals = calloc(p->n_tensors, sizeof(*t->intervals))};
	return t->intervals ? 0 : train_fail(-ENOMEM, "no memory for %u tensors", p->n_tensors);
}

void touched_deinit(struct touched *t)
{
	free(t->intervals);
}

uint8_t *touched_bitmap(const struct weightd_plan *p, struct control_saved *saved)
{
	return (uint8_t *)(saved + 1) + p->state_size;
}

/* The slot may be written at this moment: its step is written last. */
static bool is_saved(const struct control_saved *saved, uint64_t step)
{
	return __atomic_load_n(&saved->step, __ATOMIC_ACQUIRE) == step;
}

static bool lacks_any(const struct arena *a, uint64_t step)
{
	for (uint32_t rank = 0; rank < a->plan->n_ranks; rank++) {
		const struct control_saved *saved = arena_saved(a, rank, step);

		if (!is_saved(saved, step) || !saved->n_unused)
			return false;
	}
	return true;
}

static bool is_unused(const struct arena *a, uint64_t step, uint32_t tensor)
{
	for (uint32_t rank = 0; rank < a->plan->n_ranks; rank++) {
		const uint8_t *bits = touched_bitmap(a->plan, arena_saved(a, rank, step));

		if (!(bits[tensor / 8] >> tensor % 8 & 1))
			return false;
	}
	return true;
}

/* Padding belongs to the tensor before it. */
static struct plan_interval tensor_interval(const struct weightd_plan *p, uint32_t tensor)
{
	struct plan_interval found = {plan_elements(p, &p->tensors[tensor]).begin, p->n_elements};

	for (uint32_t i = tensor + 1; i < p->n_tensors; i++)
		if (plan_is_trained(&p->tensors[i])) {
			found.end = plan_elements(p, &p->tensors[i]).begin;
			break;
		}
	return found;
}

static void append(struct touched *t, struct plan_interval interval)
{
	if (interval.begin == interval.end)
		return;
	if (t->n && t->intervals[t->n - 1].end == interval.begin)
		t->intervals[t->n - 1].end = interval.end;
	else
		t->intervals[t->n++] = interval;
}

const struct touched *touched_find(struct touched *t, const struct arena *a, uint64_t step)
{
	if (!lacks_any(a, step))
		return NULL;
	t->n = 0;
	for (uint32_t i = 0; i < a->plan->n_tensors; i++)
		if (plan_is_trained(&a->plan->tensors[i]) && !is_unused(a, step, i))
			append(t, tensor_interval(a->plan, i));
	return t;
}

/* The first interval that ends behind an element. */
static uint32_t search(const struct touched *t, uint64_t element)
{
	uint32_t low = 0, high = t->n;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (t->intervals[middle].end > element)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

struct plan_interval touched_first(const struct touched *t, struct plan_interval within)
{
	struct plan_interval found = within;
	uint32_t i;

	if (!t || within.begin >= within.end)
		return found;
	i = search(t, within.begin);
	if (i == t->n || t->intervals[i].begin >= within.end)
		return (struct plan_interval){within.end, within.end};
	if (t->intervals[i].begin > found.begin)
		found.begin = t->intervals[i].begin;
	if (t->intervals[i].end < found.end)
		found.end = t->intervals[i].end;
	return found;
}

uint64_t touched_count(const struct touched *t, struct plan_interval within)
{
	uint64_t n = 0;

	for (struct plan_interval part = touched_first(t, within); part.begin < part.end;
	     part = touched_next(t, within, part))
		n += part.end - part.begin;
	return n;
}

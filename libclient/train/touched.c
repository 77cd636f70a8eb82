#include "libclient/train/touched.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

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

double *touched_weights(struct control_summary *summary)
{
	return (double *)(void *)(summary + 1);
}

uint8_t *touched_summary_bitmap(const struct weightd_plan *p, struct control_summary *summary)
{
	return (uint8_t *)(touched_weights(summary) + p->n_ranks);
}

/* Parameters that a rank has no gradient of, or all ranks of a node. */
struct unused {
	uint32_t n;
	const uint8_t *bits; /* by tensor */
};

/* A slot may be written at this moment: its step is written last. */
static bool is_written(const uint64_t *slot_step, uint64_t step)
{
	return __atomic_load_n(slot_step, __ATOMIC_ACQUIRE) == step;
}

static struct unused unused_of_rank(const struct arena *a, uint64_t step, uint32_t rank)
{
	struct control_saved *saved = arena_saved(a, rank, step);

	if (!is_written(&saved->step, step))
		return (struct unused){0};
	return (struct unused){saved->n_unused, touched_bitmap(a->plan, saved)};
}

static struct unused unused_of_node(const struct arena *a, uint64_t step, uint32_t node)
{
	struct control_summary *summary = arena_summary(a, step, node);

	if (!is_written(&summary->step, step))
		return (struct unused){0};
	return (struct unused){summary->n_unused, touched_summary_bitmap(a->plan, summary)};
}

static bool lacks(const struct unused *unused, uint32_t tensor)
{
	return unused->n && unused->bits[tensor / 8] >> tensor % 8 & 1;
}

/* The parameters that none of them has a gradient of. */
static bool all_lack(const struct unused *all, uint32_t n, uint32_t tensor)
{
	for (uint32_t i = 0; i < n; i++)
		if (!lacks(&all[i], tensor))
			return false;
	return true;
}

static bool all_lack_some(const struct unused *all, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (!all[i].n)
			return false;
	return true;
}

uint32_t touched_summarize(const struct arena *a, uint64_t step, uint8_t *ret_bits)
{
	struct unused all[WEIGHTD_RANKS_MAX];
	uint32_t n = 0;

	for (uint32_t rank = 0; rank < a->plan->n_ranks; rank++)
		all[rank] = unused_of_rank(a, step, rank);
	memset(ret_bits, 0, (a->plan->n_tensors + 7) / 8);
	for (uint32_t i = 0; i < a->plan->n_tensors; i++)
		if (plan_is_trained(&a->plan->tensors[i]) && all_lack(all, a->plan->n_ranks, i)) {
			ret_bits[i / 8] |= (uint8_t)(1 << i % 8);
			n++;
		}
	return n;
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
	bool sums_nodes = plan_sums_nodes(a->plan);
	uint32_t n = sums_nodes ? a->plan->n_nodes : a->plan->n_ranks;
	struct unused all[WEIGHTD_RANKS_MAX];

	for (uint32_t i = 0; i < n; i++)
		all[i] = sums_nodes ? unused_of_node(a, step, i) : unused_of_rank(a, step, i);
	if (!all_lack_some(all, n))
		return NULL;
	t->n = 0;
	for (uint32_t i = 0; i < a->plan->n_tensors; i++)
		if (plan_is_trained(&a->plan->tensors[i]) && !all_lack(all, n, i))
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

struct touched_parts touched_parts_of(const struct touched *t, const struct plan_pieces *pieces,
				      uint32_t bucket)
{
	struct touched_parts w = touched_parts(t, pieces);

	if (bucket == UINT32_MAX)
		return w;
	w.piece = plan_piece_of(pieces, bucket);
	w.end = w.piece ? w.piece + 1 : NULL;
	return w;
}

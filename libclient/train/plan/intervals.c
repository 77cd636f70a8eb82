/*
 * Intervals of the flat range. Shards are as even as their blocks allow, runs follow the parameter groups, and buckets have
 * whole tensors, the last tensors first, as backward completes them.
 */
#include <errno.h>
#include <stdlib.h>

#include "ipc/base/num.h"
#include "libclient/train/plan/build.h"
#include "libclient/train/plan/sentence.h"

#define FIRST_BUCKET_BYTES MIB

static bool has_elements(const struct weightd_train_tensor *t)
{
	return plan_is_trained(t) && t->n_bytes != 0;
}

static int cut_runs(struct weightd_plan *p)
{
	struct plan_run *run = NULL;

	p->runs = calloc(p->n_tensors, sizeof(*p->runs));
	if (!p->runs)
		return train_out_of_memory();
	for (uint32_t i = 0; i < p->n_tensors; i++) {
		const struct weightd_train_tensor *t = &p->tensors[i];
		uint64_t begin = plan_elements(p, t).begin;

		if (!has_elements(t) || (run && run->group == t->group))
			continue;
		if (run)
			run->interval.end = begin;
		run = &p->runs[p->n_runs++];
		*run = (struct plan_run){{begin, p->n_elements}, t->group};
	}
	return 0;
}

/*
 * A bucket ends before this tensor: that of another unit, or one that is larger with it. Such a tensor has a bucket of its own.
 */
static bool is_full(const struct weightd_plan *p, const struct weightd_train_tensor *t,
		    uint32_t unit, uint64_t size, uint64_t max)
{
	return p->n_units ? t->unit != unit : size > max;
}

/* The largest one. */
static uint64_t find_largest(const struct weightd_plan *p)
{
	uint64_t most = 0;

	for (uint32_t i = 0; i < p->n_buckets; i++) {
		uint64_t n = p->buckets[i].end - p->buckets[i].begin;

		most = n > most ? n : most;
	}
	return most;
}

static int cut_buckets(struct weightd_plan *p)
{
	uint64_t max = p->bucket_bytes < FIRST_BUCKET_BYTES ? p->bucket_bytes : FIRST_BUCKET_BYTES;
	uint64_t size = plan_element_size(p, WEIGHTD_KIND_GRAD);
	struct plan_interval b = {p->n_elements, p->n_elements};
	uint32_t unit = 0;

	p->buckets = calloc(p->n_tensors, sizeof(*p->buckets));
	if (!p->buckets)
		return train_out_of_memory();
	for (uint32_t i = p->n_tensors; i-- > 0;) {
		uint64_t begin = plan_elements(p, &p->tensors[i]).begin;

		if (!has_elements(&p->tensors[i]))
			continue;
		if (b.begin < b.end &&
		    is_full(p, &p->tensors[i], unit, (b.end - begin) * size, max)) {
			p->buckets[p->n_buckets++] = b;
			b.end = b.begin;
			max = p->bucket_bytes;
		}
		b.begin = begin;
		unit = p->tensors[i].unit;
	}
	p->buckets[p->n_buckets++] = b;
	if (p->n_buckets > PLAN_BUCKETS_MAX)
		return train_fail(-EINVAL,
				  "bucket_bytes of %llu make %u buckets; %d are the most: raise it",
				  (unsigned long long)p->bucket_bytes, p->n_buckets,
				  PLAN_BUCKETS_MAX);
	return 0;
}

int build_intervals(struct weightd_plan *p)
{
	int r;

	p->cuts = calloc((size_t)p->n_ranks + 1, sizeof(*p->cuts));
	if (!p->cuts)
		return train_out_of_memory();
	r = weightd_cuts(p->n_elements, PLAN_CUT, p->n_ranks, p->cuts);
	if (r >= 0)
		r = cut_runs(p);
	if (r >= 0 && p->form == WEIGHTD_STEP_TWO_PHASE)
		r = cut_buckets(p);
	p->n_bucket = find_largest(p);
	return r;
}

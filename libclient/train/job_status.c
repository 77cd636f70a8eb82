/*
 * The status of a job, for processes that are no ranks
 *
 * A copy of the words, made at once: what is shown of two ranks was so at the same time, within microseconds.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"
#include "libclient/train/plan/given.h"
#include "libclient/train/plan/plan.h"
#include "libclient/train/plan/rank_status.h"
#include "libclient/train/plan/sentence.h"

struct weightd_train_status {
	struct weightd_plan *plan;
	uint8_t *words;
	uint64_t now_ns; /* when they were copied */
	int holders[WEIGHTD_RANKS_MAX];
};

CLEANUP_POINTER(struct weightd_train_status, weightd_train_status_free);
CLEANUP_POINTER(struct weightd_job_view, weightd_job_view_free);

void weightd_train_status_free(struct weightd_train_status *s)
{
	if (!s)
		return;
	weightd_plan_free(s->plan);
	free(s->words);
	free(s);
}

/* The description is of a rank, too: it need not be a plan. */
static int status_take_plan(struct weightd_train_status *s, const struct weightd_job_view *view,
			    const char *job)
{
	uint64_t size;
	const void *image = weightd_job_view_description(view, &size);
	int r = weightd_plan_parse(image, size, &s->plan);

	if (r == -ENOMEM)
		return r;
	if (r < 0)
		return train_fail(
			-EPROTOTYPE,
			"job '%s' is no training job of this release of weightd-train: its first "
			"rank left no plan in it",
			job);
	if (s->plan->n_ranks != weightd_job_view_n_ranks(view))
		return train_fail(-EPROTOTYPE, "job '%s' has %u ranks, and its plan has %u", job,
				  weightd_job_view_n_ranks(view), s->plan->n_ranks);
	return 0;
}

static int status_take_words(struct weightd_train_status *s, const struct weightd_job_view *view,
			     const char *job)
{
	uint64_t size = rank_status_size(s->plan);
	int64_t n;

	s->words = malloc(size);
	if (!s->words)
		return train_out_of_memory();
	for (uint32_t i = 0; i < s->plan->n_ranks; i++)
		s->holders[i] = weightd_job_view_holder(view, i);
	n = weightd_job_view_read(view, s->words, size, 0);
	if (n < 0)
		return train_fail((int)n, "part 0 of job '%s' cannot be read: %s", job,
				  strerror((int)-n));
	s->now_ns = num_now_ns();
	return rank_status_check(s->plan, s->words, (uint64_t)n, job);
}

int weightd_train_status_read(struct weightd *w, const char *job, struct weightd_train_status **ret)
{
	cleanup(weightd_train_status_freep) struct weightd_train_status *s = calloc(1, sizeof(*s));
	cleanup(weightd_job_view_freep) struct weightd_job_view *view = NULL;
	int r;

	if (!s)
		return train_out_of_memory();
	r = weightd_job_view(w, job, &view);
	if (r < 0)
		return train_fail(r, "%s", weightd_error(w));
	r = status_take_plan(s, view, job);
	if (!r)
		r = status_take_words(s, view, job);
	if (r < 0)
		return r;
	*ret = take_ptr(s);
	return 0;
}

const struct weightd_plan *weightd_train_status_plan(const struct weightd_train_status *s)
{
	return s->plan;
}

uint32_t weightd_train_status_n_ranks(const struct weightd_train_status *s)
{
	return s->plan->n_ranks;
}

int weightd_train_status_rank(const struct weightd_train_status *s, uint32_t rank,
			      struct weightd_rank_status *ret)
{
	struct weightd_rank_status status;

	if (rank >= s->plan->n_ranks)
		return train_fail(-ENOENT, "there is no rank %u: the job has %u ranks", rank,
				  s->plan->n_ranks);
	rank_status_read(s->plan, s->words, rank, s->holders[rank], s->now_ns, &status);
	return given_return(ret, GIVEN_RANK_STATUS_MIN, &status, sizeof(status),
			    "struct weightd_rank_status");
}

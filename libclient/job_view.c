/*
 * A job as a process sees it that is no rank. It may be a rank all the same, and must not lose its lock by closing a
 * descriptor of part 0: hence the descriptor belongs to a job_lock.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "libclient/connection/call.h"
#include "libclient/connection/release.h"
#include "libclient/job_lock.h"
#include "libclient/job_token.h"
#include "weightd.h"

struct weightd_job_view {
	uint32_t n_ranks;
	struct job_lock *lock; /* owns the descriptor of part 0 */
	void *description;
	uint64_t description_size;
};

void weightd_job_view_free(struct weightd_job_view *v)
{
	if (!v)
		return;
	job_lock_free(v->lock);
	free(v->description);
	free(v);
}
CLEANUP_POINTER(struct weightd_job_view, weightd_job_view_free);

/* Takes what the reply has. */
static int view_take(struct weightd_job_view *v, struct client_call *call)
{
	cleanup(fd_closep) int description_fd = take_fd(call->reply_fds[0]);
	int part_fd = take_fd(call->reply_fds[1]);
	int r = job_lock_new(part_fd, &v->lock);

	v->n_ranks = call->reply.job_view.n_ranks;
	return r < 0 ? r
		     : job_description_read(description_fd, &v->description, &v->description_size);
}

int weightd_job_view(struct weightd *w, const char *name, struct weightd_job_view **ret)
{
	struct client_call call = {.op = WIRE_JOB_VIEW};
	cleanup(weightd_job_view_freep) struct weightd_job_view *v = NULL;
	int r = job_put_name(w, name, call.request.job_view.name);

	if (r == 0)
		r = job_check_server(w);
	if (r == 0 && !w->has_job_views)
		r = release_too_old(w, &w->sentence, "show jobs to other processes");
	if (r < 0)
		return r;
	v = calloc(1, sizeof(*v));
	if (!v)
		return sentence_set(&w->sentence, -ENOMEM, "out of memory");
	r = client_call_run(w, &call);
	if (r < 0)
		return r;
	r = view_take(v, &call);
	if (r < 0)
		return sentence_set(&w->sentence, r, "job '%s' cannot be viewed: %s", name,
				    strerror(-r));
	*ret = take_ptr(v);
	return 0;
}

uint32_t weightd_job_view_n_ranks(const struct weightd_job_view *v)
{
	return v->n_ranks;
}

const void *weightd_job_view_description(const struct weightd_job_view *v, uint64_t *ret_size)
{
	*ret_size = v->description_size;
	return v->description;
}

/* A rank may remove pages while they are read: a mapping could end this process, and pread() cannot. */
int64_t weightd_job_view_read(const struct weightd_job_view *v, void *to, uint64_t size,
			      uint64_t offset)
{
	ssize_t n;

	if (size > INT64_MAX || offset > INT64_MAX)
		return -EINVAL;
	n = pread(v->lock->fd, to, size, (off_t)offset);
	return n < 0 ? -errno : n;
}

int weightd_job_view_holder(const struct weightd_job_view *v, uint32_t rank)
{
	pid_t holder;

	if (rank >= v->n_ranks)
		return -EINVAL;
	holder = job_lock_holder(v->lock, rank);
	return holder && job_lock_is_acting(v->lock, rank, holder) ? 0 : holder;
}

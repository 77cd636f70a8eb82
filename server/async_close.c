#include "server/async_close.h"

#include <fcntl.h>
#include <stdlib.h>

#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/quota.h"

/* A burst of clients that die may well fill the queue for a moment. */
#define STUCK_NS 1000000000u

struct closing {
	struct job job;
	struct async_close *owner;
	int fd;
	struct charge charge;
};

int async_close_init(struct async_close *c, struct loop *l, struct quota *quota,
		     struct worker *memfd_worker)
{
	c->memfd_worker = memfd_worker;
	c->quota = quota;
	return worker_init(&c->worker, l);
}

bool async_close_deinit(struct async_close *c)
{
	if (c->worker.n_jobs > 0) {
		loop_remove(&c->worker.source);
		return false;
	}
	worker_deinit(&c->worker);
	return true;
}

static int close_step(struct job *job)
{
	struct closing *closing = container_of(job, struct closing, job);

	closing->fd = fd_close(closing->fd);
	return JOB_DONE;
}

static void memfd_done(struct job *job, int r)
{
	(void)r; /* closing does not fail */
	free(container_of(job, struct closing, job));
}

static void close_done(struct job *job, int r)
{
	struct closing *closing = container_of(job, struct closing, job);

	closing->owner->progress_ns = num_now_ns();
	quota_refund(&closing->charge);
	memfd_done(job, r);
}

/* NULL: there is no memory, and the descriptor is closed. */
static struct closing *closing_new(struct async_close *c, int fd)
{
	struct closing *closing = calloc(1, sizeof(*closing));

	if (!closing) {
		(void)fd_close(fd);
		return NULL;
	}
	closing->owner = c;
	closing->fd = fd;
	return closing;
}

void async_close_fd(struct async_close *c, uid_t uid, int fd)
{
	struct closing *closing;

	/* Only memfds and their like know seals. */
	if (fcntl(fd, F_GET_SEALS) >= 0) {
		async_close_memfd(c, fd);
		return;
	}
	closing = closing_new(c, fd);
	if (!closing)
		return;
	/* Past the limit it is closed all the same, and counted; the limit is for async_close_trusts(). */
	(void)quota_charge_anyway(c->quota, uid, QUOTA_CLOSING, 1, &closing->charge);
	if (c->worker.n_jobs == 0)
		c->progress_ns = num_now_ns();
	worker_submit(&c->worker, &closing->job, close_step, close_done);
}

void async_close_memfd(struct async_close *c, int fd)
{
	struct closing *closing = fd < 0 ? NULL : closing_new(c, fd);

	if (closing)
		worker_submit(c->memfd_worker, &closing->job, close_step, memfd_done);
}

bool async_close_trusts(const struct async_close *c, uid_t uid)
{
	bool stuck = c->worker.n_jobs > 0 && num_now_ns() - c->progress_ns > STUCK_NS;

	return !stuck || quota_left(c->quota, uid, QUOTA_CLOSING) > 0;
}

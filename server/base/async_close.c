#include "server/base/async_close.h"

#include <stdlib.h>

#include "ipc/base/fd.h"
#include "ipc/base/num.h"

/* A burst of clients that die may well fill the queue for a moment. */
#define STUCK_NS 1000000000u

int async_close_init(struct async_close *c, struct loop *l)
{
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

static int async_close_step(struct job *job)
{
	struct async_closing *closing = container_of(job, struct async_closing, job);

	closing->fd = fd_close(closing->fd);
	return JOB_DONE;
}

static void async_close_done(struct job *job, int r)
{
	struct async_closing *closing = container_of(job, struct async_closing, job);

	(void)r; /* closing does not fail */
	closing->owner->progress_ns = num_now_ns();
	closing->done(closing);
}

void async_close_start(struct async_close *c, struct async_closing *closing, int fd,
		       void (*done)(struct async_closing *closing))
{
	closing->owner = c;
	closing->fd = fd;
	closing->done = done;
	if (c->worker.n_jobs == 0)
		c->progress_ns = num_now_ns();
	worker_submit(&c->worker, &closing->job, async_close_step, async_close_done);
}

bool async_close_is_stuck(const struct async_close *c)
{
	return c->worker.n_jobs > 0 && num_now_ns() - c->progress_ns > STUCK_NS;
}

static void async_close_memfd_done(struct job *job, int r)
{
	(void)r; /* closing does not fail */
	free(container_of(job, struct async_closing, job));
}

void async_close_memfd(struct worker *worker, int fd)
{
	struct async_closing *closing = fd < 0 ? NULL : calloc(1, sizeof(*closing));

	if (!closing) {
		(void)fd_close(fd);
		return;
	}
	closing->fd = fd;
	worker_submit(worker, &closing->job, async_close_step, async_close_memfd_done);
}

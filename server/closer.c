#include "server/closer.h"

#include <fcntl.h>
#include <stdlib.h>

#include "ipc/base/fd.h"
#include "server/quota.h"

struct closing {
	struct job job;
	int fd;
	struct charge charge;
};

int closer_init(struct closer *c, struct loop *l, struct quota *quota)
{
	c->quota = quota;
	return worker_init(&c->worker, l);
}

bool closer_deinit(struct closer *c)
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

static void close_done(struct job *job, int r)
{
	struct closing *closing = container_of(job, struct closing, job);

	(void)r; /* closing does not fail */
	quota_refund(&closing->charge);
	free(closing);
}

void closer_close(struct closer *c, uid_t uid, int fd)
{
	/* Only memfds and their like know seals, and nothing of theirs blocks. */
	struct closing *closing = fcntl(fd, F_GET_SEALS) < 0 ? calloc(1, sizeof(*closing)) : NULL;

	if (!closing) {
		(void)fd_close(fd);
		return;
	}
	closing->fd = fd;
	/* Past the limit it is closed all the same; the limit is for closer_trusts(). */
	(void)quota_charge(c->quota, uid, QUOTA_CLOSING, 1, &closing->charge);
	worker_submit(&c->worker, &closing->job, close_step, close_done);
}

bool closer_trusts(const struct closer *c, uid_t uid)
{
	return quota_left(c->quota, uid, QUOTA_CLOSING) > 0;
}

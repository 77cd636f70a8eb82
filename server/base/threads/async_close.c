#include "server/base/threads/async_close.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/base/subordinate.h"

/* A burst of clients that die may well fill a queue for a moment. */
#define STUCK_NS 1000000000u
#define IDLE_NS 1000000000u
#define SMALL_BLOCKS 256 /* of 512 bytes */

/* A thread, which closes descriptors of one user at a time. */
struct closing_lane {
	struct worker worker; /* may be stuck */
	uid_t uid; /* while it has jobs */
	uint64_t progress_ns; /* when the thread ended a job, or got one after it had none */
};

static bool lane_is_busy(const struct closing_lane *lane)
{
	return lane && lane->worker.n_jobs > 0;
}

static bool lane_is_stuck(const struct closing_lane *lane)
{
	return lane_is_busy(lane) && num_now_ns() - lane->progress_ns > STUCK_NS;
}

static struct closing_lane *lane_new(struct loop *l)
{
	struct closing_lane *lane = calloc(1, sizeof(*lane));

	if (lane && worker_init(&lane->worker, l) < 0)
		free(take_ptr(lane));
	return lane;
}

static void lane_free(struct closing_lane *lane)
{
	if (!lane)
		return;
	worker_deinit(&lane->worker);
	free(lane);
}

/* A burst may come again soon: all threads but the first end when they had no work for a while. */
static void async_close_on_idle(struct timer *timer)
{
	struct async_close *c = container_of(timer, struct async_close, idle);

	for (int i = 1; i < ASYNC_CLOSE_LANES; i++)
		if (!lane_is_busy(c->lanes[i]))
			lane_free(take_ptr(c->lanes[i]));
}

int async_close_init(struct async_close *c, struct loop *l)
{
	*c = (struct async_close){.loop = l, .lanes = {lane_new(l)}};
	list_init(&c->waiting);
	timer_init(&c->idle, async_close_on_idle);
	return c->lanes[0] ? 0 : -EAGAIN;
}

bool async_close_deinit(struct async_close *c)
{
	bool is_stuck = false;

	timer_stop(&c->idle);
	for (int i = 0; i < ASYNC_CLOSE_LANES; i++) {
		struct closing_lane *lane = take_ptr(c->lanes[i]);

		if (lane_is_busy(lane)) {
			loop_remove(&lane->worker.source);
			is_stuck = true;
		} else {
			lane_free(lane);
		}
	}
	return !is_stuck; /* without a stuck lane nothing waits */
}

/* The lane that has closings of the user; else one without work, or a new one. NULL: there is none. */
static struct closing_lane *lane_for(struct async_close *c, uid_t uid)
{
	struct closing_lane **place = NULL;

	for (int i = 0; i < ASYNC_CLOSE_LANES; i++)
		if (lane_is_busy(c->lanes[i]) && c->lanes[i]->uid == uid)
			return c->lanes[i];
	for (int i = 0; i < ASYNC_CLOSE_LANES; i++) {
		if (c->lanes[i] && !lane_is_busy(c->lanes[i]))
			return c->lanes[i];
		if (!c->lanes[i] && !place)
			place = &c->lanes[i];
	}
	if (place)
		*place = lane_new(c->loop);
	return place ? *place : NULL;
}

static int async_close_step(struct job *job)
{
	struct async_closing *closing = container_of(job, struct async_closing, job);

	(void)fd_close(closing->fds[--closing->n_fds]);
	return closing->n_fds > 0 ? JOB_AGAIN : JOB_DONE;
}

static void async_close_done(struct job *job, int r);

static void lane_submit(struct closing_lane *lane, struct async_closing *closing)
{
	if (!lane_is_busy(lane))
		lane->progress_ns = num_now_ns();
	lane->uid = closing->uid;
	closing->lane = lane;
	worker_submit(&lane->worker, &closing->job, closing->uid, async_close_step,
		      async_close_done);
}

/* Gives a lane without work to the user that waits longest, with all that it waits for. */
static void lane_take_waiting(struct async_close *c, struct closing_lane *lane)
{
	struct async_closing *first = list_first(&c->waiting, struct async_closing, job.link);
	struct async_closing *closing, *tmp;
	uid_t uid;

	if (!first)
		return;
	uid = first->uid;
	list_for_each_safe(closing, tmp, &c->waiting, job.link) {
		if (closing->uid != uid)
			continue;
		list_remove(&closing->job.link);
		lane_submit(lane, closing);
	}
}

static void async_close_done(struct job *job, int r)
{
	struct async_closing *closing = container_of(job, struct async_closing, job);
	struct async_close *c = closing->owner;
	struct closing_lane *lane = closing->lane;

	(void)r; /* closing does not fail */
	lane->progress_ns = num_now_ns();
	closing->done(closing);
	if (!lane_is_busy(lane))
		lane_take_waiting(c, lane);
	if (!lane_is_busy(lane) && lane != c->lanes[0])
		timer_start(c->loop, &c->idle, num_now_ns() + IDLE_NS);
}

void async_close_start(struct async_close *c, struct async_closing *closing, uid_t uid,
		       void (*done)(struct async_closing *closing))
{
	uid_t payer = subordinate_payer(uid);
	struct closing_lane *lane = lane_for(c, payer);

	closing->owner = c;
	closing->uid = payer;
	closing->done = done;
	if (lane)
		lane_submit(lane, closing);
	else
		list_append(&c->waiting, &closing->job.link);
}

bool async_close_is_stuck(const struct async_close *c, uid_t uid)
{
	const struct async_closing *closing;
	uid_t payer = subordinate_payer(uid);
	bool waits = false;

	for (int i = 0; i < ASYNC_CLOSE_LANES; i++)
		if (lane_is_busy(c->lanes[i]) && c->lanes[i]->uid == payer)
			return lane_is_stuck(c->lanes[i]);
	list_for_each(closing, &c->waiting, job.link)
		waits |= closing->uid == payer;
	for (int i = 0; waits && i < ASYNC_CLOSE_LANES; i++)
		waits = !c->lanes[i] || lane_is_stuck(c->lanes[i]);
	return waits;
}

static void async_close_memfds_closed(struct job *job, int r)
{
	struct async_closing *closing = container_of(job, struct async_closing, job);

	(void)r; /* closing does not fail */
	closing->done(closing);
}

void async_close_start_memfds(struct worker *worker, struct async_closing *closing, uid_t uid,
			      void (*done)(struct async_closing *closing))
{
	closing->uid = uid;
	closing->done = done;
	worker_submit(worker, &closing->job, uid, async_close_step, async_close_memfds_closed);
}

/* A memfd of weightd's own. */
struct own_closing {
	struct async_closing closing;
	int fd;
};

static void own_memfd_closed(struct async_closing *closing)
{
	free(container_of(closing, struct own_closing, closing));
}

/* True for a memfd that is freed sooner than a thread is woken. */
static bool is_small(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 && st.st_blocks <= SMALL_BLOCKS;
}

void async_close_memfd(struct worker *worker, uid_t uid, int fd)
{
	struct own_closing *own = fd < 0 || is_small(fd) ? NULL : calloc(1, sizeof(*own));

	if (!own) {
		(void)fd_close(fd);
		return;
	}
	own->fd = fd;
	own->closing.fds = &own->fd;
	own->closing.n_fds = 1;
	async_close_start_memfds(worker, &own->closing, uid, own_memfd_closed);
}

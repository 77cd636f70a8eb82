#include "server/memory/gpu_free.h"

#include <errno.h>

#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/base/fault.h"
#include "server/base/log.h"
#include "server/memory/slot.h"
#include "server/state/server.h"

#define SECOND_NS ((uint64_t)1000000000)
#define DELAY_MAX_NS (60 * SECOND_NS)

/* The memory is free: frees the version, and with it the slot. */
static void gpu_free_end(struct slot *s)
{
	struct server *server = s->server;

	s->gpu_free.state = GPU_FREE_OVER;
	if (!server->stopping)
		server->slot_ops->freed(server);
}

/* The part of a big allocation that a driver keeps for itself does not make it an orphan. */
static uint64_t expected(const struct slot *s)
{
	return s->memory.location.map_size - s->memory.location.map_size / 8;
}

/*
 * A reader that maps the memory of many slots delays the worker no longer than one that maps one:
 * all that are freed at once have the same second. A slot without an answer within it is an orphan,
 * and looked at again.
 */
static int gpu_free_close_step(struct job *job)
{
	struct slot *s = container_of(job, struct slot, gpu_free.job);
	uint64_t before = 0;
	int r = s->backend->await_free(&s->memory, 0, 0, &before);

	slot_close(s);
	if (r < 0)
		return r;
	r = s->backend->await_free(&s->memory, before + expected(s),
				   s->gpu_free.begun_ns + SECOND_NS, &s->gpu_free.free);
	/* Part of it may be back, and taken by another program: that may end, too. */
	if (r == -EBUSY && s->gpu_free.free > before)
		s->gpu_free.free = before;
	return r;
}

static int gpu_free_look_step(struct job *job)
{
	struct slot *s = container_of(job, struct slot, gpu_free.job);

	return s->backend->await_free(&s->memory, 0, 0, &s->gpu_free.free);
}

/*
 * The bytes that the GPU would have free without us. Slots that are being freed count as ours until
 * they are over: such a slot adds to this, once, until its end is seen.
 */
static uint64_t left_by_others(const struct slot *s)
{
	return s->gpu_free.free + s->server->slot_ops->bytes_on(s->server, s->device);
}

static void gpu_free_plan_look(struct slot *s)
{
	struct gpu_free *r = &s->gpu_free;

	r->delay_ns = !r->delay_ns                     ? SECOND_NS
		      : r->delay_ns * 2 < DELAY_MAX_NS ? r->delay_ns * 2
						       : DELAY_MAX_NS;
	r->next_ns = num_now_ns() + r->delay_ns;
}

static void gpu_free_begin_orphan(struct slot *s)
{
	log_warning("memory on %s without a lease is still in use: a process maps it", s->device);
	s->gpu_free.state = GPU_FREE_ORPHAN;
	s->gpu_free.others = left_by_others(s);
	gpu_free_plan_look(s);
}

static void gpu_free_close_done(struct job *job, int r)
{
	struct slot *s = container_of(job, struct slot, gpu_free.job);
	struct freeings *freeings = &s->server->freeings;

	freeing_end(&s->gpu_free.freeing);
	if (r != -EBUSY)
		gpu_free_end(s); /* also where the GPU does not answer: the end would never be seen */
	else
		gpu_free_begin_orphan(s);
	freeings_wake(freeings);
}

static void gpu_free_look_done(struct job *job, int r)
{
	struct slot *s = container_of(job, struct slot, gpu_free.job);
	uint64_t others = left_by_others(s);

	s->gpu_free.looking = false;
	if (r == 0 && others >= s->gpu_free.others + expected(s)) {
		gpu_free_end(s);
		return;
	}
	if (r == 0 && others < s->gpu_free.others)
		s->gpu_free.others = others;
	gpu_free_plan_look(s);
}

bool gpu_free_run(struct slot *s)
{
	struct gpu_free *r = &s->gpu_free;
	struct worker *worker;

	if (!s->backend->await_free || r->state == GPU_FREE_OVER)
		return true;
	if (r->state == GPU_FREE_HELD && slot_is_lost(s))
		return true; /* it is free already */
	if (r->state == GPU_FREE_CLOSING || r->looking ||
	    (r->state == GPU_FREE_ORPHAN && num_now_ns() < r->next_ns))
		return false;
	worker = s->backend->worker(s->server);
	if (!worker)
		return false; /* a slot from before a restart can be the first to need the worker */
	if (r->state == GPU_FREE_ORPHAN) {
		r->looking = true;
		worker_submit(worker, &r->job, s->uid, gpu_free_look_step, gpu_free_look_done);
		return false;
	}
	r->state = GPU_FREE_CLOSING;
	r->begun_ns = num_now_ns();
	slot_forget(s);
	freeing_begin(&s->server->freeings, &r->freeing, s->uid, s->device);
	fault_point("release-begun");
	worker_submit(worker, &r->job, s->uid, gpu_free_close_step, gpu_free_close_done);
	return false;
}

bool gpu_free_is_orphan(const struct slot *s)
{
	return !s->backend->await_free || s->gpu_free.state == GPU_FREE_ORPHAN;
}

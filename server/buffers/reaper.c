#include "server/buffers/reaper.h"

#include "ipc/base/num.h"
#include "server/buffers/buffer.h"
#include "server/buffers/slot_reuse.h"
#include "server/buffers/version.h"
#include "server/memory/gpu_free.h"
#include "server/memory/slot.h"
#include "server/state/server.h"

#define DELAY_MIN_NS 2000000u
#define DELAY_MAX_NS 1000000000u

static void reaper_plan(struct reaper *r)
{
	timer_start(&r->server->loop, &r->timer, num_now_ns() + r->delay_ns);
}

bool version_reap(struct version *v)
{
	if (v->n_leases > 0 || v->rewriting || slot_in_use(v->slot))
		return false;
	if (slot_reuse_keep(v))
		return true;
	if (!gpu_free_run(v->slot))
		return false;
	version_free(v);
	return true;
}

/* Frees what left and is not held any more. True when something waits for the clock. */
static bool buffer_reap(struct buffer *b)
{
	struct version *v, *tmp;
	bool waits = false;

	buffer_ref(b);
	list_for_each_safe(v, tmp, &b->leaving, link)
		if (!version_reap(v))
			waits |= v->n_leases == 0;
	buffer_unref(b);
	return waits;
}

/* True when something is left that waits for the clock: what has a lease does not. */
static bool reap_list(struct list *buffers)
{
	struct buffer *b, *tmp;
	bool waits = false;

	list_for_each_safe(b, tmp, buffers, link)
		waits |= buffer_reap(b);
	return waits;
}

bool reaper_look(struct reaper *r)
{
	bool waits = reap_list(&r->server->buffers);

	return reap_list(&r->server->removed) || waits;
}

static void reaper_on_time(struct timer *timer)
{
	struct reaper *r = container_of(timer, struct reaper, timer);
	bool waits = reaper_look(r);

	r->delay_ns = r->delay_ns * 2 < DELAY_MAX_NS ? r->delay_ns * 2 : DELAY_MAX_NS;
	if (waits)
		reaper_plan(r);
}

void reaper_init(struct reaper *r, struct server *server)
{
	r->server = server;
	timer_init(&r->timer, reaper_on_time);
}

void reaper_deinit(struct reaper *r)
{
	timer_stop(&r->timer);
}

void reaper_soon(struct reaper *r)
{
	r->delay_ns = DELAY_MIN_NS;
	timer_start(&r->server->loop, &r->timer, 0);
}

void reaper_start(struct reaper *r)
{
	r->delay_ns = DELAY_MIN_NS;
	reaper_plan(r);
}

void reaper_reap(struct buffer *b)
{
	if (buffer_reap(b))
		reaper_start(b->server->reaper);
}

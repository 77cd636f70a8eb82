#include "server/buffers/reaper.h"

#include "ipc/base/num.h"
#include "server/buffers/buffer.h"
#include "server/buffers/held_charge.h"
#include "server/buffers/slot_reuse.h"
#include "server/buffers/version.h"
#include "server/memory/gpu_free.h"
#include "server/memory/slot.h"
#include "server/state/server.h"

#define DELAY_MIN_NS 2000000u
#define DELAY_MAX_NS 1000000000u
#define LOOK_NS 100000u

static void reaper_plan(struct reaper *r)
{
	timer_start(&r->server->loop, &r->timer, num_now_ns() + r->delay_ns);
}

bool version_reap(struct version *v)
{
	if (v->n_leases > 0 || v->rewriting)
		return false;
	v->orphan = slot_in_use(v->slot);
	if (v->orphan || slot_reuse_keep(v))
		held_settle(v->buffer);
	if (v->orphan || v == v->buffer->spare)
		return !v->orphan;
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

void reaper_follow(struct buffer *b)
{
	struct reaper *r = b->server->reaper;

	if (!list_empty(&b->reap_link))
		return;
	list_append(&r->buffers, &b->reap_link);
	r->n_buffers++;
}

void reaper_forget(struct buffer *b)
{
	if (list_empty(&b->reap_link))
		return;
	list_remove(&b->reap_link);
	b->server->reaper->n_buffers--;
}

bool reaper_look(struct reaper *r)
{
	uint64_t end_ns = num_now_ns() + LOOK_NS;
	unsigned n = r->n_buffers;
	bool waits = false;
	struct buffer *b;

	for (; n > 0 && (b = list_first(&r->buffers, struct buffer, reap_link)); n--) {
		reaper_forget(b);
		if (list_empty(&b->leaving))
			continue;
		reaper_follow(b);
		waits |= buffer_reap(b);
		if (num_now_ns() > end_ns)
			break;
	}
	r->cut = n > 1;
	return waits || r->cut;
}

static void reaper_on_time(struct timer *timer)
{
	struct reaper *r = container_of(timer, struct reaper, timer);
	bool waits = reaper_look(r);

	/* Those that are left are not seen later than they would have been. */
	if (!r->cut)
		r->delay_ns = r->delay_ns * 2 < DELAY_MAX_NS ? r->delay_ns * 2 : DELAY_MAX_NS;
	else if (r->delay_ns > DELAY_MIN_NS)
		r->delay_ns /= 2;
	if (waits)
		reaper_plan(r);
}

void reaper_init(struct reaper *r, struct server *server)
{
	r->server = server;
	r->n_buffers = 0;
	r->cut = false;
	list_init(&r->buffers);
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

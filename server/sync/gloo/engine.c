#include "server/sync/gloo/engine.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/num.h"
#include "server/sync/gloo/average.h"
#include "server/sync/gloo/chain.h"
#include "server/sync/gloo/exchange.h"
#include "server/sync/stream/tls.h"

/* Time in which a healthy thread detects itself that its link is done, or broken. */
#define GONE_NS 1000000000u

static struct engine *engine_of(struct engine_loop *d)
{
	return container_of(d, struct engine, engine_loop);
}

/* Blames a wire, or this node if it is NULL. */
static struct blame blame_of(const struct engine *e, const char *code, const struct wire *w)
{
	const char *here = e->engine_loop.order.node;

	if (!w)
		return (struct blame){.code = code};
	return (struct blame){.code = code,
			      .from = w->way == WIRE_OUT ? here : w->node,
			      .to = w->way == WIRE_OUT ? w->node : here,
			      .who = w->node};
}

__attribute__((format(printf, 3, 4))) static void fail(struct engine *e, const struct wire *w,
						       const char *fmt, ...)
{
	struct blame blame = blame_of(e, NULL, w);
	va_list args;

	va_start(args, fmt);
	engine_loop_vfail(&e->engine_loop, &blame, fmt, args);
	va_end(args);
}

static void gloo_count(const struct engine_loop *d, uint64_t *ret_done, uint64_t *ret_sent)
{
	const struct engine *e = container_of(d, const struct engine, engine_loop);

	*ret_done = atomic_load(&e->arrived);
	*ret_sent = atomic_load(&e->sent) + atomic_load(&e->digested);
}

/* --- Done -------------------------------------------------------------------------------------- */

/*
 * Compares the bytes of a wire with the plan and with the kernel's count. False: the engine failed.
 */
static bool gloo_check_wire(struct engine *e, const struct wire *w, struct traffic *ret)
{
	const struct planned_bytes planned = e->operation->plan(e, w);
	char why[ENGINE_ORDER_WHY_SIZE];
	struct traffic t;
	int r = wire_traffic(w, &t);

	if (r < 0)
		fail(e, w, "cannot read the kernel's byte counts: %s", strerror(-r));
	else if ((r = traffic_check(&t, &planned, why)) < 0)
		fail(e, w, "%s", why);
	else
		*ret = t;
	return r == 0;
}

static void gloo_report_done(struct engine *e)
{
	struct traffic in = {0}, out = {0};
	bool comes = false, goes = false;
	json_t *links = json_object(); /* only a mesh has several */
	json_t *done;

	for (unsigned i = 0; i < e->n_wires; i++) {
		const struct wire *w = &e->wires[i];
		struct traffic t;

		if (atomic_load(&w->state) == WIRE_NONE)
			continue;
		if (!gloo_check_wire(e, w, &t)) {
			json_decref(links);
			return;
		}
		if (e->engine_loop.order.operation != ENGINE_ORDER_BROADCAST)
			(void)json_object_set_new(
				links, w->node,
				json_pack("{so so}", "in",
					  w->way == WIRE_OUT ? json_null()
							     : traffic_describe(&t, true),
					  "out",
					  w->way == WIRE_IN ? json_null()
							    : traffic_describe(&t, false)));
		if (w->way != WIRE_OUT) {
			comes = true;
			traffic_add(&in, &t);
		}
		if (w->way != WIRE_IN) {
			goes = true;
			traffic_add(&out, &t);
		}
	}
	done = json_pack("{ss so so so}", "op", "done", "in",
			 comes ? traffic_describe(&in, true) : json_null(), "out",
			 goes ? traffic_describe(&out, false) : json_null(), "links", links);
	if (done && e->operation->report)
		e->operation->report(e, done);
	engine_loop_end(&e->engine_loop, done);
}

static void gloo_on_loop_wake(struct engine_loop *d)
{
	struct engine *e = engine_of(d);
	bool is_running;

	(void)pthread_mutex_lock(&d->lock);
	is_running = e->n_running > 0;
	(void)pthread_mutex_unlock(&d->lock);
	if (d->is_started && !is_running)
		gloo_report_done(e);
}

/* --- Threads ----------------------------------------------------------------------------------- */

void engine_break(struct engine *e, const struct wire *w, const char *fmt, ...)
{
	struct blame blame = blame_of(e, NULL, w);
	va_list args;

	va_start(args, fmt);
	engine_loop_break(&e->engine_loop, &blame, fmt, args);
	va_end(args);
}

void engine_differ(struct engine *e, const struct wire *w, const char *fmt, ...)
{
	struct blame blame = blame_of(e, "differs", w);
	va_list args;

	va_start(args, fmt);
	engine_loop_break(&e->engine_loop, &blame, fmt, args);
	va_end(args);
}

void engine_thread_is_done(struct engine *e)
{
	(void)pthread_mutex_lock(&e->engine_loop.lock);
	e->n_running--;
	(void)pthread_mutex_unlock(&e->engine_loop.lock);
	engine_loop_wake(&e->engine_loop);
}

void engine_arrived(struct engine *e, uint64_t n_bytes)
{
	(void)pthread_mutex_lock(&e->engine_loop.lock);
	atomic_store(&e->arrived, n_bytes);
	(void)pthread_cond_broadcast(&e->engine_loop.more);
	(void)pthread_mutex_unlock(&e->engine_loop.lock);
}

void engine_await(struct engine *e, uint64_t n_bytes)
{
	(void)pthread_mutex_lock(&e->engine_loop.lock);
	while (atomic_load(&e->arrived) < n_bytes)
		(void)pthread_cond_wait(&e->engine_loop.more, &e->engine_loop.lock);
	(void)pthread_mutex_unlock(&e->engine_loop.lock);
}

int engine_run(struct engine *e, void *(*fn)(void *arg), void *arg, char why[ENGINE_ORDER_WHY_SIZE])
{
	pthread_t thread;
	int r;

	(void)pthread_mutex_lock(&e->engine_loop.lock);
	e->n_running++;
	(void)pthread_mutex_unlock(&e->engine_loop.lock);
	r = pthread_create(&thread, NULL, fn, arg);
	if (r != 0) {
		(void)snprintf(why, ENGINE_ORDER_WHY_SIZE, "no thread: %s", strerror(r));
		return -r;
	}
	(void)pthread_detach(thread);
	return 0;
}

/* --- The watch --------------------------------------------------------------------------------- */

static uint64_t patience_ns(const struct engine *e, const struct wire *w)
{
	uint64_t stall_ns = e->engine_loop.order.stall_ns;

	/*
	 * A little more than the sender waits, because the sender, if it is alive, can better name
	 * the cause.
	 */
	return w->way == WIRE_IN ? stall_ns + stall_ns / 4 : stall_ns;
}

static void fail_silent(struct engine *e, const struct wire *w, uint64_t silent_ns)
{
	bool is_connecting = atomic_load(&w->state) == WIRE_CONNECTING;
	char why[LINK_WHY_SIZE];

	if (is_connecting && link_refusal(w->link, why))
		fail(e, w, "%s did not connect for %.1f s; the last peer was refused: %s", w->node,
		     (double)silent_ns / 1e9, why);
	else
		fail(e, w,
		     is_connecting        ? "%s could not be connected to for %.1f s"
		     : w->way == WIRE_OUT ? "%s took nothing for %.1f s"
					  : "%s sent nothing for %.1f s",
		     w->node, (double)silent_ns / 1e9);
}

/* Gloo does not wake a thread that waits for a transfer if the peer closes in the middle of it. */
static bool watch_end(struct engine *e, struct wire *w, uint64_t now_ns)
{
	if (atomic_load(&w->state) != WIRE_CONNECTED || wire_gone_ns(w, now_ns) < GONE_NS)
		return false;
	fail(e, w, "%s hung up", w->node);
	return true;
}

/* Blames the wire that was silent first: other silent ones may wait for it, as this node does. */
static void gloo_watch(struct engine_loop *d, uint64_t now_ns)
{
	struct engine *e = engine_of(d);
	const struct wire *worst = NULL;
	uint64_t longest_ns = 0;

	for (unsigned i = 0; i < e->n_wires; i++) {
		struct wire *w = &e->wires[i];
		int state = atomic_load(&w->state);
		uint64_t silent_ns;

		if (state == WIRE_NONE || state == WIRE_DONE)
			continue;
		if (watch_end(e, w, now_ns))
			return;
		silent_ns = wire_silent_ns(w,
					   state == WIRE_CONNECTING || e->operation->is_owed(e, w),
					   now_ns);
		if (silent_ns > patience_ns(e, w) && silent_ns > longest_ns) {
			longest_ns = silent_ns;
			worst = w;
		}
	}
	if (worst)
		fail_silent(e, worst, longest_ns);
}

/* --- Messages from the agent ------------------------------------------------------------------- */

static const char *gloo_refuse(const struct engine_order *o)
{
	if (o->tls && o->operation == ENGINE_ORDER_BROADCAST)
		return "Gloo carries weights in the clear, and `security` is \"tls\"; use the "
		       "engine \"tcp\"";
	return o->gpu[0] ? "Gloo carries host memory only; use the engine \"nccl\"" : NULL;
}

static int gloo_open_epoch(struct engine_loop *d, const json_t *order,
			   char why[ENGINE_ORDER_WHY_SIZE])
{
	static const struct operation *const operations[] = {
		[ENGINE_ORDER_BROADCAST] = &chain_operation,
		[ENGINE_ORDER_AVERAGE] = &average_operation,
		[ENGINE_ORDER_EXCHANGE] = &exchange_operation,
	};
	struct engine *e = engine_of(d);
	cleanup(json_freep) json_t *opened = json_object();
	int r;

	if (!opened)
		return engine_order_no_memory(why);
	e->operation = operations[d->order.operation];
	r = d->order.tls ? tls_new(d->order.pem_fds, &e->tls, why, ENGINE_ORDER_WHY_SIZE) : 0;
	if (r == 0)
		r = e->operation->open(e, order, opened, why);
	if (r == 0)
		engine_loop_opened(d, take_ptr(opened));
	return r;
}

static int gloo_start_epoch(struct engine_loop *d, const json_t *order,
			    char why[ENGINE_ORDER_WHY_SIZE])
{
	struct engine *e = engine_of(d);

	for (unsigned i = 0; i < e->n_wires; i++)
		e->wires[i].moved_ns = num_now_ns();
	return e->operation->start(e, order, why);
}

static void gloo_report_sockets(struct engine_loop *d)
{
	struct engine *e = engine_of(d);

	for (unsigned i = 0; i < e->n_wires; i++)
		wire_report_socket(e, &e->wires[i]);
}

int engine_init(struct engine *e)
{
	static const struct engine_loop_kind kind = {
		.name = "weightd-sync-gloo",
		.refuse = gloo_refuse,
		.open = gloo_open_epoch,
		.start = gloo_start_epoch,
		.report_sockets = gloo_report_sockets,
		.on_wake = gloo_on_loop_wake,
		.watch = gloo_watch,
		.count = gloo_count,
	};

	*e = (struct engine){0};
	return engine_loop_init(&e->engine_loop, &kind);
}

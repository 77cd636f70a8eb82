#include "server/sync/nccl/engine.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "ipc/base/num.h"
#include "server/sync/base/json_fields.h"
#include "server/sync/nccl/surroundings.h"
#include "server/sync/nccl/worker.h"

#define PAUSE_NS 200000u
/* Stalls that the start of the driver and NCCL may take: it is the slowest step. */
#define START_STALLS 4

static struct engine *engine_of(struct engine_loop *d)
{
	return container_of(d, struct engine, engine_loop);
}

/* --- Messages to the agent --------------------------------------------------------------------- */

static void report_open(struct engine *e)
{
	engine_loop_opened(&e->engine_loop, e->operation->opened(e));
}

json_t *engine_describe_bytes(uint64_t n_bytes, bool is_there)
{
	return is_there ? json_pack("{sI sn}", "bytes", (json_int_t)n_bytes, "kernel") : json_null();
}

static void nccl_report_done(struct engine *e)
{
	json_t *done = e->operation->done(e);

	if (done && json_object_set_new(done, "op", json_string("done")) < 0) {
		json_decref(done);
		done = NULL;
	}
	engine_loop_end(&e->engine_loop, done);
}

static void nccl_on_loop_wake(struct engine_loop *d)
{
	struct engine *e = engine_of(d);
	bool is_open, is_done;

	(void)pthread_mutex_lock(&d->lock);
	is_open = e->is_open;
	is_done = e->is_done;
	(void)pthread_mutex_unlock(&d->lock);
	/*
	 * At once: if the engine is ended before the next tick, the agent would not learn its
	 * progress.
	 */
	if (d->is_started)
		engine_loop_report_progress(d);
	if (is_done)
		nccl_report_done(e);
	else if (is_open && !d->is_open)
		report_open(e);
}

static void nccl_count(const struct engine_loop *d, uint64_t *ret_done, uint64_t *ret_sent)
{
	const struct engine *e = container_of(d, const struct engine, engine_loop);

	*ret_done = atomic_load(&e->done);
	*ret_sent = atomic_load(&e->sent);
}

/* --- The worker -------------------------------------------------------------------------------- */

void engine_does(struct engine *e, const char *what)
{
	atomic_store(&e->doing, what);
	atomic_store(&e->alive_ns, what ? num_now_ns() : 0);
}

bool engine_break(struct engine *e, bool is_at_link, const char *fmt, ...)
{
	struct blame blame = {0};
	va_list args;

	if (is_at_link && e->previous[0])
		blame = (struct blame){.from = e->previous,
				       .to = e->engine_loop.order.node,
				       .who = e->previous};
	va_start(args, fmt);
	engine_loop_break(&e->engine_loop, &blame, fmt, args);
	va_end(args);
	return false;
}

bool engine_break_from(struct engine *e, const char *code, const char *node, const char *fmt, ...)
{
	const struct blame blame = {.code = code,
				    .from = node,
				    .to = node ? e->engine_loop.order.node : NULL,
				    .who = node};
	va_list args;

	va_start(args, fmt);
	engine_loop_break(&e->engine_loop, &blame, fmt, args);
	va_end(args);
	return false;
}

static void set_flag(struct engine *e, bool *what)
{
	(void)pthread_mutex_lock(&e->engine_loop.lock);
	*what = true;
	(void)pthread_mutex_unlock(&e->engine_loop.lock);
	engine_loop_wake(&e->engine_loop);
}

void engine_is_open(struct engine *e)
{
	set_flag(e, &e->is_open);
}

void engine_is_done(struct engine *e)
{
	set_flag(e, &e->is_done);
}

void engine_await_start(struct engine *e)
{
	engine_does(e, NULL);
	(void)pthread_mutex_lock(&e->engine_loop.lock);
	while (!e->has_started)
		(void)pthread_cond_wait(&e->engine_loop.more, &e->engine_loop.lock);
	(void)pthread_mutex_unlock(&e->engine_loop.lock);
}

void engine_pause(struct engine *e)
{
	struct timespec until;

	(void)clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += PAUSE_NS;
	if (until.tv_nsec >= 1000000000) {
		until.tv_nsec -= 1000000000;
		until.tv_sec++;
	}
	atomic_store(&e->alive_ns, num_now_ns());
	(void)pthread_mutex_lock(&e->engine_loop.lock);
	(void)pthread_cond_timedwait(&e->engine_loop.more, &e->engine_loop.lock, &until);
	(void)pthread_mutex_unlock(&e->engine_loop.lock);
}

void engine_arrived(struct engine *e, uint64_t n_done, uint64_t n_sent)
{
	atomic_store(&e->done, n_done);
	atomic_store(&e->sent, n_sent);
	engine_loop_wake(&e->engine_loop);
}

/*
 * The worker watches NCCL; this watches the worker. It waits a little longer, because the worker
 * can better name the cause.
 */
static void nccl_watch(struct engine_loop *d, uint64_t now_ns)
{
	struct engine *e = engine_of(d);
	uint64_t alive_ns = atomic_load(&e->alive_ns), stall_ns = d->order.stall_ns;
	uint64_t patience_ns = d->is_open ? stall_ns + stall_ns / 4 : START_STALLS * stall_ns;
	const char *doing = atomic_load(&e->doing);

	if (alive_ns && doing && now_ns > alive_ns + patience_ns)
		engine_loop_fail(d, NULL, "%s hangs: a call has not returned for %.1f s", doing,
				 (double)(now_ns - alive_ns) / 1e9);
}

/* --- Messages from the agent ------------------------------------------------------------------- */

static const char *nccl_refuse(const struct engine_order *o)
{
	if (o->tls)
		return "NCCL carries weights in the clear, and `security` is \"tls\"; use the "
		       "engine \"tcp\"";
	if (!o->gpu[0])
		return "NCCL carries memory of GPUs only; use the engine \"tcp\" or \"gloo\"";
	return o->address.size ? NULL : "`address` must be one of IPv4 or IPv6, in digits";
}

/* Sets the environment while there is one thread, since all threads share it. */
static int nccl_open_epoch(struct engine_loop *d, const json_t *order,
			   char why[ENGINE_ORDER_WHY_SIZE])
{
	struct engine *e = engine_of(d);
	int r = surroundings_set(&d->order, why);

	e->operation = e->operations[d->order.operation];
	if (r == 0)
		r = e->operation->open(e, order, why);
	if (r == 0)
		r = worker_start(e, why);
	return r == ENGINE_IS_OVER ? 0 : r;
}

static int nccl_start_epoch(struct engine_loop *d, const json_t *order,
			    char why[ENGINE_ORDER_WHY_SIZE])
{
	struct engine *e = engine_of(d);
	int r = e->operation->start(e, order, why);

	if (r < 0)
		return r;
	(void)pthread_mutex_lock(&d->lock);
	e->has_started = true;
	(void)pthread_cond_broadcast(&d->more);
	(void)pthread_mutex_unlock(&d->lock);
	return 0;
}

int engine_init(struct engine *e, const struct operation *const operations[ENGINE_ORDER_OPERATIONS])
{
	static const struct engine_loop_kind kind = {
		.name = "weightd-sync-nccl",
		.refuse = nccl_refuse,
		.open = nccl_open_epoch,
		.start = nccl_start_epoch,
		.on_wake = nccl_on_loop_wake,
		.watch = nccl_watch,
		.count = nccl_count,
	};

	*e = (struct engine){.operations = operations, .previous = ""};
	return engine_loop_init(&e->engine_loop, &kind);
}

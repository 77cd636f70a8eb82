#include "server/sync/gloo/engine.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ipc/base/num.h"
#include "server/sync/base/fields.h"
#include "server/sync/base/talk.h"
#include "server/sync/gloo/average.h"
#include "server/sync/gloo/chain.h"
#include "server/sync/gloo/exchange.h"

#define TICK_NS 100000000u
#define GONE_NS                                                                                    \
	1000000000u /* in which a thread that is well has seen itself that its link is done, or broken */

/* --- What the agent hears ---------------------------------------------------------------------- */

/* Again at the next tick if its socket is full. A message that cannot be made never ends: it kills us. */
static void tell_end(struct engine *e)
{
	int r = talk_send(TALK_FD, e->end, NULL, 0);

	if (r == -EAGAIN)
		return;
	e->is_end_told = true;
	if (r < 0)
		loop_quit(&e->loop);
}

static void end(struct engine *e, json_t *message)
{
	e->end = message;
	if (message)
		tell_end(e);
	else
		loop_quit(&e->loop); /* no memory: the agent sees that we are gone */
}

static const char *name_or_null(const char *name)
{
	return name[0] ? name : NULL;
}

/* Of a wire, or of this node if it is NULL. */
static void fail_as(struct engine *e, const char *code, const struct wire *w, const char *why)
{
	const char *here = e->order.node, *there = w ? w->node : "";
	bool goes = w && w->way == WIRE_OUT;

	if (e->end)
		return;
	end(e,
	    json_pack("{ss ss ss ss? ss? ss? sI}", "op", "failed", "code", code, "why", why, "from",
		      w ? (goes ? here : there) : NULL, "to", w ? (goes ? there : here) : NULL,
		      "who", name_or_null(there), "done", (json_int_t)atomic_load(&e->arrived)));
}

static void fail(struct engine *e, const struct wire *w, const char *why)
{
	fail_as(e, "stream", w, why);
}

__attribute__((format(printf, 2, 3))) static void fail_here(struct engine *e, const char *fmt, ...)
{
	char why[ORDER_WHY_SIZE];
	va_list args;

	va_start(args, fmt);
	(void)vsnprintf(why, sizeof(why), fmt, args);
	va_end(args);
	fail(e, NULL, why);
}

static void tell_progress(struct engine *e)
{
	uint64_t arrived = atomic_load(&e->arrived), sent = atomic_load(&e->sent);
	json_t *message;

	if (arrived == e->told_arrived && sent == e->told_sent)
		return;
	message = json_pack("{ss sI sI}", "op", "progress", "done", (json_int_t)arrived, "sent",
			    (json_int_t)sent);
	/* One that the agent has no room for is replaced by the next. */
	if (message && talk_send(TALK_FD, message, NULL, 0) == 0) {
		e->told_arrived = arrived;
		e->told_sent = sent;
	}
	json_decref(message);
}

/* --- Done -------------------------------------------------------------------------------------- */

/* Compares what a wire carried with the plan and with the kernel. False: the engine failed. */
static bool count(struct engine *e, const struct wire *w, struct traffic *ret)
{
	uint64_t received, sent;
	char why[ORDER_WHY_SIZE];
	int r = wire_traffic(w, ret);

	e->operation->plan(e, w, &received, &sent);
	if (r == 0 && ret->received == received && ret->sent == sent &&
	    ret->kernel_received == received && ret->kernel_sent == sent)
		return true;
	if (r < 0)
		(void)snprintf(why, sizeof(why), "the kernel does not say what it carried: %s",
			       strerror(-r));
	else
		(void)snprintf(why, sizeof(why),
			       "%llu bytes received and %llu sent were planned, %llu and %llu "
			       "counted, and by the kernel %llu and %llu",
			       (unsigned long long)received, (unsigned long long)sent,
			       (unsigned long long)ret->received, (unsigned long long)ret->sent,
			       (unsigned long long)ret->kernel_received,
			       (unsigned long long)ret->kernel_sent);
	fail(e, w, why);
	return false;
}

static json_t *describe(bool is_there, uint64_t n_bytes, uint64_t by_kernel)
{
	return is_there ? json_pack("{sI sI}", "bytes", (json_int_t)n_bytes, "kernel",
				    (json_int_t)by_kernel)
			: json_null();
}

static void tell_done(struct engine *e)
{
	struct traffic in = {0}, out = {0};
	bool comes = false, goes = false;
	json_t *done;
	json_t *links = json_object(); /* those that go both ways, of which there may be many */

	for (unsigned i = 0; i < e->n_wires; i++) {
		const struct wire *w = &e->wires[i];
		struct traffic t;

		if (atomic_load(&w->state) == WIRE_NONE)
			continue;
		if (!count(e, w, &t)) {
			json_decref(links);
			return;
		}
		if (w->way == WIRE_BOTH)
			(void)json_object_set_new(
				links, w->node,
				json_pack("{so so}", "in",
					  describe(true, t.received, t.kernel_received), "out",
					  describe(true, t.sent, t.kernel_sent)));
		if (w->way != WIRE_OUT) {
			comes = true;
			in.received += t.received;
			in.kernel_received += t.kernel_received;
		}
		if (w->way != WIRE_IN) {
			goes = true;
			out.sent += t.sent;
			out.kernel_sent += t.kernel_sent;
		}
	}
	done = json_pack("{ss so so so}", "op", "done", "in",
			 describe(comes, in.received, in.kernel_received), "out",
			 describe(goes, out.sent, out.kernel_sent), "links", links);
	if (done && e->operation->report)
		e->operation->report(e, done);
	end(e, done);
}

static void look(struct engine *e)
{
	char why[ORDER_WHY_SIZE];
	const struct wire *broken;
	bool is_running, differs;

	if (e->end || !e->is_started)
		return;
	(void)pthread_mutex_lock(&e->lock);
	is_running = e->n_running > 0;
	broken = e->broken;
	differs = e->differs;
	memcpy(why, e->why, sizeof(why));
	(void)pthread_mutex_unlock(&e->lock);
	if (why[0])
		fail_as(e, differs ? "differs" : "stream", broken, why);
	else if (!is_running)
		tell_done(e);
}

/* --- Threads ----------------------------------------------------------------------------------- */

static void wake(struct engine *e)
{
	(void)eventfd_write(e->wake.fd, 1); /* it fails only where it is awake anyway */
}

__attribute__((format(printf, 4, 0))) static void break_as(struct engine *e, bool differs,
							   const struct wire *w, const char *fmt,
							   va_list args)
{
	(void)pthread_mutex_lock(&e->lock);
	if (!e->why[0]) {
		(void)vsnprintf(e->why, sizeof(e->why), fmt, args);
		e->broken = w;
		e->differs = differs;
	}
	(void)pthread_mutex_unlock(&e->lock);
	wake(e);
}

void engine_break(struct engine *e, const struct wire *w, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	break_as(e, false, w, fmt, args);
	va_end(args);
}

void engine_differ(struct engine *e, const struct wire *w, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	break_as(e, true, w, fmt, args);
	va_end(args);
}

void engine_thread_is_done(struct engine *e)
{
	(void)pthread_mutex_lock(&e->lock);
	e->n_running--;
	(void)pthread_mutex_unlock(&e->lock);
	wake(e);
}

void engine_arrived(struct engine *e, uint64_t n_bytes)
{
	(void)pthread_mutex_lock(&e->lock);
	atomic_store(&e->arrived, n_bytes);
	(void)pthread_cond_broadcast(&e->more);
	(void)pthread_mutex_unlock(&e->lock);
}

void engine_await(struct engine *e, uint64_t n_bytes)
{
	(void)pthread_mutex_lock(&e->lock);
	while (atomic_load(&e->arrived) < n_bytes)
		(void)pthread_cond_wait(&e->more, &e->lock);
	(void)pthread_mutex_unlock(&e->lock);
}

int engine_run(struct engine *e, void *(*fn)(void *arg), void *arg)
{
	pthread_t thread;
	int r;

	(void)pthread_mutex_lock(&e->lock);
	e->n_running++;
	(void)pthread_mutex_unlock(&e->lock);
	r = pthread_create(&thread, NULL, fn, arg);
	if (r != 0)
		return -r;
	(void)pthread_detach(thread);
	return 0;
}

static void on_wake(struct source *source, uint32_t events)
{
	struct engine *e = container_of(source, struct engine, wake);
	eventfd_t n;

	(void)events;
	(void)eventfd_read(source->fd, &n);
	look(e);
}

/* --- The watch --------------------------------------------------------------------------------- */

static uint64_t patience_ns(const struct engine *e, const struct wire *w)
{
	uint64_t stall_ns = e->order.stall_ns;

	/* A little more than at the other end, which, if it lives, knows better who is to blame. */
	return w->way == WIRE_IN ? stall_ns + stall_ns / 4 : stall_ns;
}

static void tell_silence(struct engine *e, const struct wire *w, uint64_t silent_ns)
{
	char why[ORDER_WHY_SIZE];

	(void)snprintf(why, sizeof(why),
		       atomic_load(&w->state) == WIRE_CONNECTING
			       ? "%s could not be connected to for %.1f s"
		       : w->way == WIRE_OUT ? "%s took nothing for %.1f s"
					    : "%s sent nothing for %.1f s",
		       w->node, (double)silent_ns / 1e9);
	fail(e, w, why);
}

/* Gloo does not wake who waits for a transfer that had begun to come when the other end hung up. */
static bool watch_end(struct engine *e, struct wire *w, uint64_t now_ns)
{
	char why[ORDER_WHY_SIZE];

	if (atomic_load(&w->state) != WIRE_CONNECTED || wire_gone_ns(w, now_ns) < GONE_NS)
		return false;
	(void)snprintf(why, sizeof(why), "%s hung up", w->node);
	fail(e, w, why);
	return true;
}

/* Of several that are silent, the one that was silent first: the others may wait for it, as we do. */
static void watch(struct engine *e, uint64_t now_ns)
{
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
		tell_silence(e, worst, longest_ns);
}

static void on_tick(struct timer *timer)
{
	struct engine *e = container_of(timer, struct engine, tick);
	uint64_t now = num_now_ns();

	if (!e->end && e->is_started) {
		tell_progress(e);
		watch(e, now);
	}
	if (e->end && !e->is_end_told)
		tell_end(e);
	timer_start(&e->loop, &e->tick, now + TICK_NS);
}

/* --- What the agent says ----------------------------------------------------------------------- */

static void open_epoch(struct engine *e, struct talk *t)
{
	static const struct operation *const operations[] = {
		[ORDER_BROADCAST] = &chain_operation,
		[ORDER_AVERAGE] = &average_operation,
		[ORDER_EXCHANGE] = &exchange_operation,
	};
	const struct operation *operation;
	json_t *opened = json_pack("{ss}", "op", "opened");
	char why[ORDER_WHY_SIZE] = "no memory";
	int r = opened ? order_read(t, &e->order, why) : -ENOMEM;

	if (r == 0 && e->order.tls) {
		(void)snprintf(why, sizeof(why),
			       "the order is wrong: Gloo carries weights in the clear, and "
			       "`security` is \"tls\"; use the engine \"tcp\"");
		r = -EBADMSG;
	}
	if (r == 0 && e->order.gpu[0]) {
		(void)snprintf(
			why, sizeof(why),
			"the order is wrong: Gloo carries host memory only; use the engine \"nccl\"");
		r = -EBADMSG;
	}
	operation = operations[e->order.operation];
	if (r == 0)
		r = operation->open(e, t->message, opened, why);
	if (r == 0) {
		(void)snprintf(why, sizeof(why), "the agent does not listen");
		r = talk_send(TALK_FD, opened, NULL, 0);
	}
	json_decref(opened);
	if (r < 0)
		fail_here(e, "%s", why);
	else
		e->operation = operation;
}

static void start_epoch(struct engine *e, const json_t *message)
{
	char why[ORDER_WHY_SIZE];

	/* Threads may be done or broken before this returns; that is looked at when it has. */
	e->is_started = true;
	for (unsigned i = 0; i < e->n_wires; i++)
		e->wires[i].moved_ns = num_now_ns();
	if (e->operation->start(e, message, why) < 0)
		fail_here(e, "%s", why);
	look(e);
}

static void obey(struct engine *e, struct talk *t)
{
	const char *op = json_string_value(json_object_get(t->message, "op"));

	if (op && !strcmp(op, "open") && !e->operation)
		open_epoch(e, t);
	else if (op && !strcmp(op, "start") && e->operation && !e->is_started)
		start_epoch(e, t->message);
	else
		fail_here(e, "the order is wrong: `op` has to be \"open\" once, and then \"start\" "
			     "once");
}

static void on_agent(struct source *source, uint32_t events)
{
	struct engine *e = container_of(source, struct engine, agent);
	struct talk t;
	int r = talk_receive(TALK_FD, MSG_DONTWAIT, &t);

	(void)events;
	if (r == -EAGAIN)
		return;
	if (r == -EBADMSG) {
		fail_here(e, "the order is wrong: it is no JSON object");
		return;
	}
	if (r < 0) {
		loop_quit(&e->loop); /* nobody wants it any more */
		return;
	}
	if (!e->end)
		obey(e, &t);
	talk_deinit(&t);
}

int engine_init(struct engine *e)
{
	int wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), r;

	if (wake_fd < 0)
		return -errno;
	*e = (struct engine){0};
	order_init(&e->order);
	(void)pthread_mutex_init(&e->lock, NULL);
	(void)pthread_cond_init(&e->more, NULL);
	timer_init(&e->tick, on_tick);
	r = loop_init(&e->loop);
	if (r == 0)
		r = loop_add(&e->loop, &e->agent, TALK_FD, EPOLLIN, on_agent);
	if (r == 0)
		r = loop_add(&e->loop, &e->wake, wake_fd, EPOLLIN, on_wake);
	if (r == 0)
		timer_start(&e->loop, &e->tick, num_now_ns() + TICK_NS);
	return r;
}

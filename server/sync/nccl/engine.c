#include "server/sync/nccl/engine.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>

#include "ipc/base/num.h"
#include "server/sync/base/fields.h"
#include "server/sync/base/talk.h"
#include "server/sync/nccl/surroundings.h"
#include "server/sync/nccl/worker.h"

#define TICK_NS 100000000u
#define PAUSE_NS 200000u
#define START_STALLS                                                                               \
	4 /* how many stalls the driver and NCCL may take to start: longer than anything later */

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

/* Of the link to the node before this one, or of this node. */
static void fail(struct engine *e, bool is_at_link, const char *why)
{
	const char *from = is_at_link && e->order.from[0] ? e->order.from : NULL;

	if (e->end)
		return;
	end(e, json_pack("{ss ss ss ss? ss? ss? sI}", "op", "failed", "code", "stream", "why", why,
			 "from", from, "to", from ? e->order.node : NULL, "who", from, "done",
			 (json_int_t)atomic_load(&e->done)));
}

__attribute__((format(printf, 2, 3))) static void fail_here(struct engine *e, const char *fmt, ...)
{
	char why[ORDER_WHY_SIZE];
	va_list args;

	va_start(args, fmt);
	(void)vsnprintf(why, sizeof(why), fmt, args);
	va_end(args);
	fail(e, false, why);
}

static void tell_progress(struct engine *e)
{
	uint64_t done = atomic_load(&e->done);
	json_t *message;

	if (done == e->told_done)
		return;
	message = json_pack("{ss sI sI}", "op", "progress", "done", (json_int_t)done, "sent",
			    (json_int_t)done);
	/* One that the agent has no room for is replaced by the next. */
	if (message && talk_send(TALK_FD, message, NULL, 0) == 0)
		e->told_done = done;
	json_decref(message);
}

/* The source says what NCCL was to mint, the others that they have their memory. */
static void tell_open(struct engine *e)
{
	char hello[2 * NCCL_ID_SIZE + 1];
	json_t *message;
	int r;

	field_hex(e->id.bytes, sizeof(e->id.bytes), hello);
	message = json_pack("{ss ss*}", "op", "opened", "hello", e->order.from[0] ? NULL : hello);
	r = message ? talk_send(TALK_FD, message, NULL, 0) : -ENOMEM;
	json_decref(message);
	e->is_open_told = true;
	if (r < 0)
		fail_here(e, "the agent does not listen: %s", strerror(-r));
}

/* What was carried is what was planned, as NCCL carries no bytes that it was not told to; nobody else counts them. */
static void tell_done(struct engine *e)
{
	json_t *bytes = json_pack("{sI sn}", "bytes", (json_int_t)e->order.total, "kernel");
	bool is_source = !e->order.from[0];

	tell_progress(e);
	end(e, json_pack("{ss sO? sO?}", "op", "done", "in", is_source ? NULL : bytes, "out",
			 is_source ? bytes : NULL));
	json_decref(bytes);
}

static void look(struct engine *e)
{
	char why[ORDER_WHY_SIZE];
	bool is_open, is_done, is_at_link;

	if (e->end)
		return;
	(void)pthread_mutex_lock(&e->lock);
	is_open = e->is_open;
	is_done = e->is_done;
	is_at_link = e->is_at_link;
	memcpy(why, e->why, sizeof(why));
	(void)pthread_mutex_unlock(&e->lock);
	if (why[0])
		fail(e, is_at_link, why);
	else if (is_done)
		tell_done(e);
	else if (is_open && !e->is_open_told)
		tell_open(e);
}

/* --- The worker -------------------------------------------------------------------------------- */

static void wake(struct engine *e)
{
	(void)eventfd_write(e->wake.fd, 1); /* it fails only where it is awake anyway */
}

void engine_does(struct engine *e, const char *what)
{
	atomic_store(&e->doing, what);
	atomic_store(&e->alive_ns, what ? num_now_ns() : 0);
}

bool engine_break(struct engine *e, bool is_at_link, const char *fmt, ...)
{
	va_list args;

	(void)pthread_mutex_lock(&e->lock);
	if (!e->why[0]) {
		va_start(args, fmt);
		(void)vsnprintf(e->why, sizeof(e->why), fmt, args);
		va_end(args);
		e->is_at_link = is_at_link;
	}
	(void)pthread_mutex_unlock(&e->lock);
	wake(e);
	return false;
}

void engine_is_open(struct engine *e)
{
	(void)pthread_mutex_lock(&e->lock);
	e->is_open = true;
	(void)pthread_mutex_unlock(&e->lock);
	wake(e);
}

void engine_is_done(struct engine *e)
{
	(void)pthread_mutex_lock(&e->lock);
	e->is_done = true;
	(void)pthread_mutex_unlock(&e->lock);
	wake(e);
}

void engine_await_start(struct engine *e)
{
	engine_does(e, NULL);
	(void)pthread_mutex_lock(&e->lock);
	while (!e->has_started)
		(void)pthread_cond_wait(&e->more, &e->lock);
	(void)pthread_mutex_unlock(&e->lock);
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
	(void)pthread_mutex_lock(&e->lock);
	(void)pthread_cond_timedwait(&e->more, &e->lock, &until);
	(void)pthread_mutex_unlock(&e->lock);
}

void engine_arrived(struct engine *e, uint64_t n_bytes)
{
	atomic_store(&e->done, n_bytes);
}

static void on_wake(struct source *source, uint32_t events)
{
	struct engine *e = container_of(source, struct engine, wake);
	eventfd_t n;

	(void)events;
	(void)eventfd_read(source->fd, &n);
	look(e);
}

/* The worker looks after NCCL; this looks after the worker. A little later, as it knows better what is wrong. */
static void watch(struct engine *e, uint64_t now_ns)
{
	uint64_t alive_ns = atomic_load(&e->alive_ns);
	uint64_t patience_ns = e->is_open_told ? e->order.stall_ns + e->order.stall_ns / 4
					       : START_STALLS * e->order.stall_ns;
	const char *doing = atomic_load(&e->doing);

	if (alive_ns && doing && now_ns > alive_ns + patience_ns)
		fail_here(e, "%s hangs: a call has not returned for %.1f s", doing,
			  (double)(now_ns - alive_ns) / 1e9);
}

static void on_tick(struct timer *timer)
{
	struct engine *e = container_of(timer, struct engine, tick);
	uint64_t now = num_now_ns();

	if (!e->end && e->is_started)
		tell_progress(e);
	if (!e->end && e->is_asked)
		watch(e, now);
	if (e->end && !e->is_end_told)
		tell_end(e);
	timer_start(&e->loop, &e->tick, now + TICK_NS);
}

/* --- What the agent says ----------------------------------------------------------------------- */

/* NULL: nothing is. */
static const char *what_is_wrong(const struct order *o)
{
	if (o->tls)
		return "NCCL carries weights in the clear, and `security` is \"tls\"; use the "
		       "engine \"tcp\"";
	if (o->operation != ORDER_BROADCAST)
		return "NCCL averages nothing here; use the engine \"gloo\"";
	if (!o->gpu[0])
		return "NCCL carries memory of GPUs only; use the engine \"tcp\" or \"gloo\"";
	return o->address.size ? NULL : "`address` has to be one of IPv4 or IPv6, in digits";
}

static void open_epoch(struct engine *e, struct talk *t)
{
	char why[ORDER_WHY_SIZE];
	const char *wrong;

	if (order_read(t, &e->order, why) < 0) {
		fail_here(e, "%s", why);
		return;
	}
	wrong = what_is_wrong(&e->order);
	if (wrong) {
		fail_here(e, "the order is wrong: %s", wrong);
		return;
	}
	/* While there is one thread: the environment is everybody's. */
	if (surroundings_set(&e->order, why) < 0 || worker_start(e, why) < 0)
		fail_here(e, "%s", why);
	else
		e->is_asked = true;
}

static void start_epoch(struct engine *e, const json_t *message)
{
	char why[ORDER_WHY_SIZE];
	bool is_source = !e->order.from[0];

	if (order_read_place(message, &e->place, why) < 0) {
		fail_here(e, "%s", why);
		return;
	}
	if (is_source != (e->place.rank == 0) ||
	    (is_source && memcmp(e->place.id, e->id.bytes, sizeof(e->place.id)) != 0)) {
		fail_here(e, "the order is wrong: `rank` 0 is the source, which said the `hello`");
		return;
	}
	e->is_started = true;
	(void)pthread_mutex_lock(&e->lock);
	e->has_started = true;
	(void)pthread_cond_broadcast(&e->more);
	(void)pthread_mutex_unlock(&e->lock);
}

static void obey(struct engine *e, struct talk *t)
{
	const char *op = json_string_value(json_object_get(t->message, "op"));

	if (op && !strcmp(op, "open") && !e->is_asked)
		open_epoch(e, t);
	else if (op && !strcmp(op, "start") && e->is_open_told && !e->is_started)
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
	pthread_condattr_t monotonic;

	if (wake_fd < 0)
		return -errno;
	*e = (struct engine){0};
	order_init(&e->order);
	(void)pthread_mutex_init(&e->lock, NULL);
	(void)pthread_condattr_init(&monotonic);
	(void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	(void)pthread_cond_init(&e->more, &monotonic);
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

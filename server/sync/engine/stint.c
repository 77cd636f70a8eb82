#include "server/sync/engine/stint.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/base/log.h"
#include "server/sync/base/talk.h"
#include "server/sync/engine/traffic.h"

#define TICK_NS 100000000u

/* --- What the agent hears ---------------------------------------------------------------------- */

/* Again at the next tick if its socket is full. A message that cannot be made never ends: it kills us. */
static void tell_end(struct stint *d)
{
	int r = talk_send(TALK_FD, d->end, NULL, 0);

	if (r == -EAGAIN)
		return;
	d->is_end_told = true;
	if (r < 0)
		loop_quit(&d->loop);
}

/* It waits for room: what is not told would look as if it had carried nothing. */
void stint_tell_socket(struct stint *d, int fd, const char *node, bool is_dialled,
		       const struct planned *planned)
{
	cleanup(json_freep) json_t *message = NULL;

	if (!atomic_load(&d->is_traced))
		return;
	atomic_fetch_add(&d->n_sockets, 1);
	message = json_pack("{ss ss sb sI}", "op", "socket", "node", node, "dialled", is_dialled,
			    "expected", (json_int_t)(planned->sent + planned->received));
	if (message)
		(void)talk_send_wait(TALK_FD, message, &fd, 1); /* without the agent we end soon */
}

/* How many it has to know of. */
static void add_sockets(const struct stint *d, json_t *message)
{
	unsigned n = atomic_load(&d->n_sockets);

	if (message && n)
		(void)json_object_set_new(message, "sockets", json_integer(n));
}

void stint_end(struct stint *d, json_t *message)
{
	if (d->is_over) {
		json_decref(message);
		return;
	}
	d->is_over = true;
	if (d->kind->end)
		d->kind->end(d);
	add_sockets(d, message);
	d->end = message;
	if (message)
		tell_end(d);
	else
		loop_quit(&d->loop); /* no memory: the agent sees that we are gone */
}

static void fail(struct stint *d, const struct blame *b, const char *why)
{
	static const struct blame here;
	uint64_t done, sent;

	b = b ? b : &here;
	d->kind->count(d, &done, &sent);
	stint_end(d, json_pack("{ss ss ss ss? ss? ss? sI so*}", "op", "failed", "code",
			       b->code ? b->code : "stream", "why", why, "from", b->from, "to",
			       b->to, "who", b->who, "done", (json_int_t)done, "stripe",
			       b->stripe ? json_integer(*b->stripe) : NULL));
}

void stint_vfail(struct stint *d, const struct blame *b, const char *fmt, va_list args)
{
	char why[ORDER_WHY_SIZE];

	(void)vsnprintf(why, sizeof(why), fmt, args);
	fail(d, b, why);
}

void stint_fail(struct stint *d, const struct blame *b, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	stint_vfail(d, b, fmt, args);
	va_end(args);
}

void stint_opened(struct stint *d, json_t *message)
{
	int r = -ENOMEM;

	if (message && json_object_set_new(message, "op", json_string("opened")) == 0)
		r = talk_send(TALK_FD, message, NULL, 0);
	json_decref(message);
	if (r < 0) {
		stint_fail(d, NULL, "the agent cannot be told that all is ready: %s", strerror(-r));
		return;
	}
	d->kind->count(d, &d->told_done, &d->told_sent);
	d->is_open = true;
}

void stint_tell_progress(struct stint *d)
{
	uint64_t done, sent;
	json_t *message;

	d->kind->count(d, &done, &sent);
	if (done == d->told_done && sent == d->told_sent)
		return;
	message = json_pack("{ss sI sI}", "op", "progress", "done", (json_int_t)done, "sent",
			    (json_int_t)sent);
	/* One that the agent has no room for is replaced by the next. */
	if (message && talk_send(TALK_FD, message, NULL, 0) == 0) {
		d->told_done = done;
		d->told_sent = sent;
	}
	json_decref(message);
}

/* --- Threads ----------------------------------------------------------------------------------- */

void stint_wake(struct stint *d)
{
	(void)eventfd_write(d->wake.fd, 1); /* it fails only where it is awake anyway */
}

void stint_break(struct stint *d, const struct blame *b, const char *fmt, va_list args)
{
	(void)pthread_mutex_lock(&d->lock);
	if (!d->why[0]) {
		(void)vsnprintf(d->why, sizeof(d->why), fmt, args);
		d->blame = *b;
	}
	(void)pthread_mutex_unlock(&d->lock);
	stint_wake(d);
}

static void look(struct stint *d)
{
	struct blame blame;
	char why[ORDER_WHY_SIZE];

	if (d->is_over)
		return;
	(void)pthread_mutex_lock(&d->lock);
	blame = d->blame;
	memcpy(why, d->why, sizeof(why));
	(void)pthread_mutex_unlock(&d->lock);
	if (why[0])
		fail(d, &blame, why);
	else
		d->kind->look(d);
}

static void on_wake(struct source *source, uint32_t events)
{
	eventfd_t n;

	(void)events;
	(void)eventfd_read(source->fd, &n);
	look(container_of(source, struct stint, wake));
}

static void on_tick(struct timer *timer)
{
	struct stint *d = container_of(timer, struct stint, tick);
	uint64_t now = num_now_ns();

	if (!d->is_over && d->is_open)
		stint_tell_progress(d);
	if (!d->is_over && d->is_asked)
		d->kind->watch(d, now);
	if (d->end && !d->is_end_told)
		tell_end(d);
	timer_start(&d->loop, &d->tick, now + TICK_NS);
}

/* --- What the agent says ----------------------------------------------------------------------- */

static void open_epoch(struct stint *d, struct talk *t)
{
	char why[ORDER_WHY_SIZE];
	const char *never;

	if (order_read(t, &d->order, why) < 0) {
		fail(d, NULL, why);
		return;
	}
	if (d->order.is_traced)
		atomic_store(&d->is_traced, true);
	d->is_asked = true;
	never = d->kind->refuse(&d->order);
	if (never)
		stint_fail(d, NULL, "the order is wrong: %s", never);
	else if (d->kind->open(d, t->message, why) < 0)
		fail(d, NULL, why);
}

static void start_epoch(struct stint *d, const json_t *order)
{
	char why[ORDER_WHY_SIZE];

	d->is_started = true;
	if (d->kind->start(d, order, why) < 0)
		fail(d, NULL, why);
	else
		look(d); /* there may be nothing to do */
}

static void change_rate(struct stint *d, const json_t *order)
{
	char why[ORDER_WHY_SIZE];
	uint64_t max_rate;

	if (order_read_rate(order, &max_rate, why) < 0)
		fail(d, NULL, why);
	else
		d->kind->limit(d, max_rate);
}

/* Who counts what they carry lost sight of all of them. */
static void tell_sockets(struct stint *d)
{
	atomic_store(&d->n_sockets, 0);
	atomic_store(&d->is_traced, true);
	if (d->is_asked)
		d->kind->tell_sockets(d);
}

static void obey(struct stint *d, struct talk *t)
{
	const char *op = json_string_value(json_object_get(t->message, "op"));

	if (op && !strcmp(op, "open") && !d->is_asked)
		open_epoch(d, t);
	else if (op && !strcmp(op, "start") && d->is_open && !d->is_started)
		start_epoch(d, t->message);
	else if (op && !strcmp(op, "sockets") && d->kind->tell_sockets)
		tell_sockets(d);
	else if (op && !strcmp(op, "rate") && d->is_started && d->kind->limit)
		change_rate(d, t->message);
	else
		stint_fail(d, NULL,
			   "the order is wrong: `op` has to be \"open\" once, then \"start\" once%s",
			   d->kind->limit ? ", and then nothing but \"rate\" and \"sockets\"" : "");
}

static void on_agent(struct source *source, uint32_t events)
{
	struct stint *d = container_of(source, struct stint, agent);
	struct talk t;
	int r = talk_receive(TALK_FD, MSG_DONTWAIT, &t);

	(void)events;
	if (r == -EAGAIN)
		return;
	if (r == -EBADMSG) {
		stint_fail(d, NULL, "the order is wrong: it is no JSON object");
		return;
	}
	if (r < 0) {
		loop_quit(&d->loop); /* nobody wants it any more */
		return;
	}
	if (!d->is_over)
		obey(d, &t);
	talk_deinit(&t);
}

/* --- From the first to the last ---------------------------------------------------------------- */

int stint_init(struct stint *d, const struct stint_kind *kind)
{
	pthread_condattr_t monotonic;
	int wake_fd, r;

	*d = (struct stint){.kind = kind};
	log_set_name(kind->name);
	log_init(LOG_LEVEL_INFO);
	(void)signal(SIGPIPE, SIG_IGN); /* sendfile() has no flag against it */
	order_init(&d->order);
	timer_init(&d->tick, on_tick);
	(void)pthread_mutex_init(&d->lock, NULL);
	(void)pthread_condattr_init(&monotonic);
	(void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	(void)pthread_cond_init(&d->more, &monotonic);
	r = loop_init(&d->loop);
	if (r == 0)
		r = loop_add(&d->loop, &d->agent, TALK_FD, EPOLLIN, on_agent);
	if (r < 0) {
		log_error("weightd-sync starts this program, with a socket as descriptor 3: %s",
			  strerror(-r));
		return r;
	}
	wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	r = wake_fd < 0 ? -errno : loop_add(&d->loop, &d->wake, wake_fd, EPOLLIN, on_wake);
	if (r < 0) {
		log_error("no eventfd to work with: %s", strerror(-r));
		return r;
	}
	timer_start(&d->loop, &d->tick, num_now_ns() + TICK_NS);
	return 0;
}

void stint_deinit(struct stint *d)
{
	timer_stop(&d->tick);
	loop_remove(&d->agent);
	loop_remove(&d->wake);
	(void)fd_close(d->wake.fd);
	order_deinit(&d->order);
	json_decref(d->end);
	loop_deinit(&d->loop);
}

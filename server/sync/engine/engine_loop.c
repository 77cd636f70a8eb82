#include "server/sync/engine/engine_loop.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/base/log.h"
#include "server/sync/base/json_packet.h"
#include "server/sync/engine/traffic.h"

#define TICK_NS 100000000u

/* --- Messages to the agent -------------------------------------------------------------------- */

/*
 * If the socket is full, the next tick sends it again. A message that cannot be made never ends:
 * the agent kills us.
 */
static void send_end(struct engine_loop *d)
{
	int r = json_packet_send(JSON_PACKET_FD, d->end, NULL, 0);

	if (r == -EAGAIN)
		return;
	d->is_end_sent = true;
	if (r < 0)
		loop_quit(&d->loop);
}

/*
 * Waits for room: a connection that the agent does not receive would seem to have carried nothing.
 */
void engine_loop_report_socket(struct engine_loop *d, int fd, const char *node, bool is_dialled,
			       const struct planned_bytes *planned)
{
	cleanup(json_freep) json_t *message = NULL;

	if (!atomic_load(&d->is_traced))
		return;
	atomic_fetch_add(&d->n_sockets, 1);
	message = json_pack("{ss ss sb sI}", "op", "socket", "node", node, "dialled", is_dialled,
			    "expected", (json_int_t)(planned->sent + planned->received));
	if (message)
		(void)json_packet_send_wait(JSON_PACKET_FD, message, &fd,
					    1); /* without the agent this process ends soon */
}

/* The number of sockets that the agent has to receive. */
static void add_sockets(const struct engine_loop *d, json_t *message)
{
	unsigned n = atomic_load(&d->n_sockets);

	if (message && n)
		(void)json_object_set_new(message, "sockets", json_integer(n));
}

void engine_loop_end(struct engine_loop *d, json_t *message)
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
		send_end(d);
	else
		loop_quit(&d->loop); /* no memory: the agent sees that this process exits */
}

static void engine_loop_end_failed(struct engine_loop *d, const struct blame *b, const char *why)
{
	static const struct blame here;
	uint64_t done, sent;

	b = b ? b : &here;
	d->kind->count(d, &done, &sent);
	engine_loop_end(d, json_pack("{ss ss ss ss? ss? ss? sI so*}", "op", "failed", "code",
				     b->code ? b->code : "stream", "why", why, "from", b->from,
				     "to", b->to, "who", b->who, "done", (json_int_t)done, "stripe",
				     b->stripe ? json_integer(*b->stripe) : NULL));
}

void engine_loop_vfail(struct engine_loop *d, const struct blame *b, const char *fmt, va_list args)
{
	char why[ENGINE_ORDER_WHY_SIZE];

	(void)vsnprintf(why, sizeof(why), fmt, args);
	engine_loop_end_failed(d, b, why);
}

void engine_loop_fail(struct engine_loop *d, const struct blame *b, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	engine_loop_vfail(d, b, fmt, args);
	va_end(args);
}

void engine_loop_opened(struct engine_loop *d, json_t *message)
{
	int r = -ENOMEM;

	if (message && json_object_set_new(message, "op", json_string("opened")) == 0)
		r = json_packet_send(JSON_PACKET_FD, message, NULL, 0);
	json_decref(message);
	if (r < 0) {
		engine_loop_fail(d, NULL, "cannot send \"opened\" to the agent: %s", strerror(-r));
		return;
	}
	d->kind->count(d, &d->reported_done, &d->reported_sent);
	d->is_open = true;
}

void engine_loop_report_progress(struct engine_loop *d)
{
	uint64_t done, sent;
	json_t *message;

	d->kind->count(d, &done, &sent);
	if (done == d->reported_done && sent == d->reported_sent)
		return;
	message = json_pack("{ss sI sI}", "op", "progress", "done", (json_int_t)done, "sent",
			    (json_int_t)sent);
	/* If the agent's socket is full, the next progress message replaces this one. */
	if (message && json_packet_send(JSON_PACKET_FD, message, NULL, 0) == 0) {
		d->reported_done = done;
		d->reported_sent = sent;
	}
	json_decref(message);
}

/* --- Threads ---------------------------------------------------------------------------------- */

void engine_loop_wake(struct engine_loop *d)
{
	(void)eventfd_write(d->wake.fd, 1); /* it fails only if the loop is awake anyway */
}

void engine_loop_break(struct engine_loop *d, const struct blame *b, const char *fmt, va_list args)
{
	(void)pthread_mutex_lock(&d->lock);
	if (!d->why[0]) {
		(void)vsnprintf(d->why, sizeof(d->why), fmt, args);
		d->blame = *b;
	}
	(void)pthread_mutex_unlock(&d->lock);
	engine_loop_wake(d);
}

static void loop_check(struct engine_loop *d)
{
	struct blame blame;
	char why[ENGINE_ORDER_WHY_SIZE];

	if (d->is_over)
		return;
	(void)pthread_mutex_lock(&d->lock);
	blame = d->blame;
	memcpy(why, d->why, sizeof(why));
	(void)pthread_mutex_unlock(&d->lock);
	if (why[0])
		engine_loop_end_failed(d, &blame, why);
	else
		d->kind->on_wake(d);
}

static void on_wake(struct source *source, uint32_t events)
{
	eventfd_t n;

	(void)events;
	(void)eventfd_read(source->fd, &n);
	loop_check(container_of(source, struct engine_loop, wake));
}

static void engine_loop_on_tick(struct timer *timer)
{
	struct engine_loop *d = container_of(timer, struct engine_loop, tick);
	uint64_t now = num_now_ns();

	if (!d->is_over && d->is_open)
		engine_loop_report_progress(d);
	if (!d->is_over && d->is_asked)
		d->kind->watch(d, now);
	if (d->end && !d->is_end_sent)
		send_end(d);
	timer_start(&d->loop, &d->tick, now + TICK_NS);
}

/* --- Messages from the agent ------------------------------------------------------------------ */

static void engine_loop_open_epoch(struct engine_loop *d, struct json_packet *t)
{
	char why[ENGINE_ORDER_WHY_SIZE];
	const char *never;

	if (engine_order_read(t, &d->order, why) < 0) {
		engine_loop_end_failed(d, NULL, why);
		return;
	}
	if (d->order.is_traced)
		atomic_store(&d->is_traced, true);
	d->is_asked = true;
	never = d->kind->refuse(&d->order);
	if (never)
		engine_loop_fail(d, NULL, "the order is wrong: %s", never);
	else if (d->kind->open(d, t->message, why) < 0)
		engine_loop_end_failed(d, NULL, why);
}

static void engine_loop_start_epoch(struct engine_loop *d, const json_t *order)
{
	char why[ENGINE_ORDER_WHY_SIZE];

	d->is_started = true;
	if (d->kind->start(d, order, why) < 0)
		engine_loop_end_failed(d, NULL, why);
	else
		loop_check(d); /* there may be nothing to do */
}

static void change_rate(struct engine_loop *d, const json_t *order)
{
	char why[ENGINE_ORDER_WHY_SIZE];
	uint64_t max_rate;

	if (engine_order_read_rate(order, &max_rate, why) < 0)
		engine_loop_end_failed(d, NULL, why);
	else
		d->kind->limit(d, max_rate);
}

/* The agent's observer has lost all sockets, and asks for them again. */
static void engine_loop_report_sockets(struct engine_loop *d)
{
	atomic_store(&d->n_sockets, 0);
	atomic_store(&d->is_traced, true);
	if (d->is_asked)
		d->kind->report_sockets(d);
}

static void handle_message(struct engine_loop *d, struct json_packet *t)
{
	const char *op = json_string_value(json_object_get(t->message, "op"));

	if (op && !strcmp(op, "open") && !d->is_asked)
		engine_loop_open_epoch(d, t);
	else if (op && !strcmp(op, "start") && d->is_open && !d->is_started)
		engine_loop_start_epoch(d, t->message);
	else if (op && !strcmp(op, "sockets") && d->kind->report_sockets)
		engine_loop_report_sockets(d);
	else if (op && !strcmp(op, "rate") && d->is_started && d->kind->limit)
		change_rate(d, t->message);
	else
		engine_loop_fail(
			d, NULL,
			"the order is wrong: `op` must be \"open\" once, then \"start\" once%s",
			d->kind->limit ? ", and then nothing but \"rate\" and \"sockets\"" : "");
}

static void on_agent(struct source *source, uint32_t events)
{
	struct engine_loop *d = container_of(source, struct engine_loop, agent);
	struct json_packet t;
	int r = json_packet_receive(JSON_PACKET_FD, MSG_DONTWAIT, &t);

	(void)events;
	if (r == -EAGAIN)
		return;
	if (r == -EBADMSG) {
		engine_loop_fail(d, NULL, "the order is wrong: it is no JSON object");
		return;
	}
	if (r < 0) {
		loop_quit(&d->loop); /* the agent has closed its end */
		return;
	}
	if (!d->is_over)
		handle_message(d, &t);
	json_packet_deinit(&t);
}

/* --- Start and end ---------------------------------------------------------------------------- */

int engine_loop_init(struct engine_loop *d, const struct engine_loop_kind *kind)
{
	pthread_condattr_t monotonic;
	int wake_fd, r;

	*d = (struct engine_loop){.kind = kind};
	log_set_name(kind->name);
	log_init(LOG_LEVEL_INFO);
	(void)signal(SIGPIPE, SIG_IGN); /* sendfile() has no flag against it */
	engine_order_init(&d->order);
	timer_init(&d->tick, engine_loop_on_tick);
	(void)pthread_mutex_init(&d->lock, NULL);
	(void)pthread_condattr_init(&monotonic);
	(void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	(void)pthread_cond_init(&d->more, &monotonic);
	r = loop_init(&d->loop);
	if (r == 0)
		r = loop_add(&d->loop, &d->agent, JSON_PACKET_FD, EPOLLIN, on_agent);
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

void engine_loop_deinit(struct engine_loop *d)
{
	timer_stop(&d->tick);
	loop_remove(&d->agent);
	loop_remove(&d->wake);
	(void)fd_close(d->wake.fd);
	engine_order_deinit(&d->order);
	json_decref(d->end);
	loop_deinit(&d->loop);
}

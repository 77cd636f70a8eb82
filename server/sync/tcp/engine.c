#include "server/sync/tcp/engine.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/num.h"
#include "server/sync/base/fields.h"
#include "server/sync/tcp/tls.h"

#define TICK_NS 100000000u

/* --- What the agent hears ---------------------------------------------------------------------- */

bool engine_is_over(const struct engine *e)
{
	return e->end;
}

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
	gate_close(&e->gate);
	timer_stop(&e->out.retry);
	loop_remove(&e->in.source);
	loop_remove(&e->out.source);
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

void engine_fail(struct engine *e, enum engine_side side, const char *fmt, ...)
{
	const struct order *o = &e->order;
	const char *from = side == ENGINE_IN ? o->from : side == ENGINE_OUT ? o->node : "";
	const char *to = side == ENGINE_IN ? o->node : side == ENGINE_OUT ? e->next.node : "";
	const char *who = side == ENGINE_IN ? from : to;
	char why[ORDER_WHY_SIZE];
	va_list args;

	if (e->end)
		return;
	va_start(args, fmt);
	(void)vsnprintf(why, sizeof(why), fmt, args);
	va_end(args);
	end(e, json_pack("{ss ss ss ss? ss? ss? sI}", "op", "failed", "code", "stream", "why", why,
			 "from", name_or_null(from), "to", name_or_null(to), "who",
			 name_or_null(who), "done", (json_int_t)e->arrived));
}

static json_t *describe_traffic(const struct traffic *t, bool is_in)
{
	return json_pack("{sI sI}", "bytes", (json_int_t)(is_in ? t->received : t->sent), "kernel",
			 (json_int_t)(is_in ? t->kernel_received : t->kernel_sent));
}

void engine_look(struct engine *e)
{
	bool is_last = !e->next.node[0];

	if (e->end || !e->is_started || (e->order.from[0] && e->in.state != INBOUND_DONE) ||
	    (!is_last && e->out.state != OUTBOUND_DONE))
		return;
	end(e, json_pack("{ss so so}", "op", "done", "in",
			 e->order.from[0] ? describe_traffic(&e->in.traffic, true) : json_null(),
			 "out", is_last ? json_null() : describe_traffic(&e->out.traffic, false)));
}

static void tell_progress(struct engine *e)
{
	json_t *message;

	if (e->arrived == e->told_arrived && e->out.cursor.at == e->told_sent)
		return;
	message = json_pack("{ss sI sI}", "op", "progress", "done", (json_int_t)e->arrived, "sent",
			    (json_int_t)e->out.cursor.at);
	/* One that the agent has no room for is replaced by the next. */
	if (message && talk_send(TALK_FD, message, NULL, 0) == 0) {
		e->told_arrived = e->arrived;
		e->told_sent = e->out.cursor.at;
	}
	json_decref(message);
}

/* --- What happens ------------------------------------------------------------------------------ */

void engine_arrived(struct engine *e, uint64_t n_bytes)
{
	e->arrived = n_bytes;
	outbound_push(e);
}

bool engine_count(struct engine *e, enum engine_side side, const struct link *l,
		  uint64_t planned_received, uint64_t planned_sent, struct traffic *ret)
{
	struct traffic t;
	int r = link_traffic(l, &t);

	if (r < 0) {
		engine_fail(e, side, "the kernel does not say what it carried: %s", strerror(-r));
		return false;
	}
	if (t.received != t.kernel_received || t.sent != t.kernel_sent) {
		engine_fail(
			e, side,
			"%llu bytes received and %llu sent were counted, by the kernel %llu and %llu",
			(unsigned long long)t.received, (unsigned long long)t.sent,
			(unsigned long long)t.kernel_received, (unsigned long long)t.kernel_sent);
		return false;
	}
	if (!l->tls && (t.received != planned_received || t.sent != planned_sent)) {
		engine_fail(e, side,
			    "%llu bytes received and %llu sent were counted, planned %llu and %llu",
			    (unsigned long long)t.received, (unsigned long long)t.sent,
			    (unsigned long long)planned_received, (unsigned long long)planned_sent);
		return false;
	}
	*ret = t;
	return true;
}

static void on_tick(struct timer *timer)
{
	struct engine *e = container_of(timer, struct engine, tick);
	uint64_t now = num_now_ns();

	if (!e->end && e->is_open) {
		tell_progress(e);
		gate_look(e, now);
		outbound_look(e, now);
	}
	if (!e->end && e->is_open)
		inbound_look(e, now);
	if (e->end && !e->is_end_told)
		tell_end(e);
	timer_start(&e->loop, &e->tick, now + TICK_NS);
}

/* --- What the agent says ----------------------------------------------------------------------- */

static int tell_open(uint16_t port)
{
	json_t *message = json_pack("{ss si}", "op", "opened", "port", (int)port);
	int r = message ? talk_send(TALK_FD, message, NULL, 0) : -ENOMEM;

	json_decref(message);
	return r;
}

static void open_epoch(struct engine *e, struct talk *t)
{
	char why[ORDER_WHY_SIZE];
	uint16_t port = 0;
	bool is_source;
	int r = order_read(t, &e->order, why);

	if (r == 0 && e->order.operation != ORDER_BROADCAST) {
		(void)snprintf(
			why, sizeof(why),
			"the order is wrong: TCP carries broadcasts only; use the engine \"gloo\"");
		r = -EBADMSG;
	}
	if (r == 0 && e->order.tls)
		r = tls_new(e->order.pem_fds, &e->tls, why, sizeof(why));
	if (r < 0) {
		engine_fail(e, ENGINE_HERE, "%s", why);
		return;
	}
	is_source = !e->order.from[0];
	r = memory_init(&e->memory, e->order.memory_fd, e->order.n_bytes, is_source, e->order.tls);
	if (r < 0) {
		engine_fail(e, ENGINE_HERE, "the memory cannot be mapped: %s", strerror(-r));
		return;
	}
	if (is_source) {
		e->arrived = e->told_arrived = e->order.total;
	} else {
		e->in.state = INBOUND_AWAITED;
		r = gate_open(e, &port);
	}
	if (r == 0)
		r = tell_open(port);
	if (r < 0)
		engine_fail(e, ENGINE_HERE, "%s cannot listen: %s", e->order.node, strerror(-r));
	else
		e->is_open = true;
}

static void start_epoch(struct engine *e, const json_t *message)
{
	char why[ORDER_WHY_SIZE];

	if (order_read_next(message, &e->next, why) < 0) {
		engine_fail(e, ENGINE_HERE, "%s", why);
		return;
	}
	e->is_started = true;
	e->started_ns = num_now_ns();
	if (e->next.node[0])
		outbound_start(e);
	engine_look(e);
}

static void obey(struct engine *e, struct talk *t)
{
	const char *op = json_string_value(json_object_get(t->message, "op"));

	if (op && !strcmp(op, "open") && !e->is_open)
		open_epoch(e, t);
	else if (op && !strcmp(op, "start") && e->is_open && !e->is_started)
		start_epoch(e, t->message);
	else
		engine_fail(e, ENGINE_HERE,
			    "the order is wrong: `op` has to be \"open\" once, and then "
			    "\"start\" once");
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
		engine_fail(e, ENGINE_HERE, "the order is wrong: it is no JSON object");
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
	int r;

	*e = (struct engine){0};
	order_init(&e->order);
	gate_init(&e->gate);
	inbound_init(&e->in);
	outbound_init(&e->out);
	timer_init(&e->tick, on_tick);
	r = loop_init(&e->loop);
	if (r == 0)
		r = loop_add(&e->loop, &e->agent, TALK_FD, EPOLLIN, on_agent);
	if (r == 0)
		timer_start(&e->loop, &e->tick, num_now_ns() + TICK_NS);
	return r;
}

void engine_deinit(struct engine *e)
{
	timer_stop(&e->tick);
	loop_remove(&e->agent);
	gate_close(&e->gate);
	inbound_deinit(&e->in);
	outbound_deinit(&e->out);
	memory_deinit(&e->memory);
	SSL_CTX_free(e->tls);
	order_deinit(&e->order);
	json_decref(e->end);
	loop_deinit(&e->loop);
}

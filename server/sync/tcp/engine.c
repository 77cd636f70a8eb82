#include "server/sync/tcp/engine.h"

#include <errno.h>
#include <netdb.h>
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
	for (unsigned i = 0; i < STRIPES_MAX; i++) {
		timer_stop(&e->out[i].retry);
		loop_remove(&e->in[i].source);
		loop_remove(&e->out[i].source);
	}
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

bool engine_is_awaiting(const struct engine *e)
{
	unsigned n_came = 0;

	if (!e->order.from[0])
		return false;
	for (unsigned i = 0; i < e->n_in; i++)
		n_came += e->in[i].state != INBOUND_NONE;
	return !e->n_in || n_came < e->n_in;
}

const char *engine_over(const struct engine *e, enum engine_side side, unsigned i,
			char ret[ENGINE_OVER_SIZE])
{
	bool is_in = side == ENGINE_IN;
	const struct address *a = is_in ? &e->order.addresses[i] : &e->next.ways[i].to;
	char digits[INET6_ADDRSTRLEN];

	ret[0] = '\0';
	if ((is_in ? e->n_in : e->n_out) > 1 &&
	    getnameinfo((const struct sockaddr *)&a->at, a->size, digits, sizeof(digits), NULL, 0,
			NI_NUMERICHOST) == 0)
		(void)snprintf(ret, ENGINE_OVER_SIZE, " (over %s)", digits);
	return ret;
}

static void fail(struct engine *e, enum engine_side side, json_t *stripe, const char *fmt,
		 va_list args)
{
	const struct order *o = &e->order;
	const char *from = side == ENGINE_IN ? o->from : side == ENGINE_OUT ? o->node : "";
	const char *to = side == ENGINE_IN ? o->node : side == ENGINE_OUT ? e->next.node : "";
	const char *who = side == ENGINE_IN ? from : to;
	char why[ORDER_WHY_SIZE];

	if (e->end)
		return;
	(void)vsnprintf(why, sizeof(why), fmt, args);
	end(e,
	    json_pack("{ss ss ss ss? ss? ss? sI so*}", "op", "failed", "code", "stream", "why", why,
		      "from", name_or_null(from), "to", name_or_null(to), "who", name_or_null(who),
		      "done", (json_int_t)stripes_done(&e->stripes), "stripe", stripe));
}

void engine_fail(struct engine *e, enum engine_side side, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	fail(e, side, NULL, fmt, args);
	va_end(args);
}

void engine_fail_stripe(struct engine *e, enum engine_side side, unsigned place, const char *fmt,
			...)
{
	bool is_stripe = (side == ENGINE_IN ? e->n_in : e->n_out) > 1;
	va_list args;

	if (e->end)
		return;
	va_start(args, fmt);
	fail(e, side, is_stripe ? json_integer(place) : NULL, fmt, args);
	va_end(args);
}

static json_t *describe_traffic(const struct traffic *t, bool is_in)
{
	return json_pack("{sI sI}", "bytes", (json_int_t)(is_in ? t->received : t->sent), "kernel",
			 (json_int_t)(is_in ? t->kernel_received : t->kernel_sent));
}

static void add_traffic(struct traffic *sum, const struct traffic *t)
{
	sum->received += t->received;
	sum->sent += t->sent;
	sum->kernel_received += t->kernel_received;
	sum->kernel_sent += t->kernel_sent;
}

/* All stripes have the same cipher, and so the same answer. */
static const char *who_encrypts(const struct engine *e, bool is_in)
{
	return (is_in ? e->in[0].link.is_kernel_receiving : e->out[0].link.is_kernel_sending)
		       ? "kernel"
		       : "openssl";
}

/* Of a link; where it has several stripes, of each of these, too. */
static json_t *describe_link(const struct engine *e, bool is_in)
{
	unsigned n = is_in ? e->n_in : e->n_out;
	json_t *stripes = n > 1 ? json_array() : NULL, *link;
	struct traffic sum = {0};

	for (unsigned i = 0; i < n; i++) {
		const struct traffic *t = is_in ? &e->in[i].traffic : &e->out[i].traffic;

		add_traffic(&sum, t);
		if (stripes)
			json_array_append_new(stripes, describe_traffic(t, is_in));
	}
	if (n == 0)
		return json_null();
	link = describe_traffic(&sum, is_in);
	if (stripes)
		json_object_set_new(link, "stripes", stripes);
	if (e->tls)
		json_object_set_new(link, "tls", json_string(who_encrypts(e, is_in)));
	return link;
}

static bool is_done(const struct engine *e)
{
	if (!e->is_started || engine_is_awaiting(e))
		return false;
	for (unsigned i = 0; i < e->n_in; i++)
		if (e->in[i].state != INBOUND_DONE)
			return false;
	for (unsigned i = 0; i < e->n_out; i++)
		if (e->out[i].state != OUTBOUND_DONE)
			return false;
	return true;
}

void engine_look(struct engine *e)
{
	if (e->end || !is_done(e))
		return;
	/* Each stripe may say that no more comes over it. */
	if (stripes_done(&e->stripes) < e->order.total)
		engine_fail(e, ENGINE_IN, "%s says that all was sent, and some of it did not come",
			    e->order.from);
	else
		end(e, json_pack("{ss so so}", "op", "done", "in", describe_link(e, true), "out",
				 describe_link(e, false)));
}

static void tell_progress(struct engine *e)
{
	uint64_t arrived = stripes_done(&e->stripes), sent = 0;
	json_t *message;

	for (unsigned i = 0; i < e->n_out; i++)
		sent += e->out[i].n_bytes;
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

/* --- What happens ------------------------------------------------------------------------------ */

void engine_arrived(struct engine *e)
{
	for (unsigned i = 0; i < e->n_out && !e->end; i++)
		outbound_push(&e->out[i]);
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
	}
	for (unsigned i = 0; i < e->n_out && !e->end; i++)
		outbound_look(&e->out[i], now);
	if (!e->end && e->is_open)
		inbound_look(e, now);
	if (e->end && !e->is_end_told)
		tell_end(e);
	timer_start(&e->loop, &e->tick, now + TICK_NS);
}

/* --- What the agent says ----------------------------------------------------------------------- */

/* All ports, if this node has several addresses; the first is that of the first. */
static int tell_open(const uint16_t *ports, unsigned n)
{
	json_t *message = json_pack("{ss si}", "op", "opened", "port", n ? (int)ports[0] : 0);
	json_t *all = n > 1 ? json_array() : NULL;
	int r;

	for (unsigned i = 0; all && i < n; i++)
		json_array_append_new(all, json_integer(ports[i]));
	if (all)
		json_object_set_new(message, "ports", all);
	r = message ? talk_send(TALK_FD, message, NULL, 0) : -ENOMEM;
	json_decref(message);
	return r;
}

/* The stream, the memory, and where it comes in. */
static int prepare(struct engine *e)
{
	bool is_source = !e->order.from[0];
	uint16_t ports[STRIPES_MAX] = {0};
	int r;

	r = stripes_init(&e->stripes, &e->order.ranges, e->order.chunk, is_source);
	if (r < 0) {
		engine_fail(e, ENGINE_HERE, "%llu bytes cannot be cut into pieces of %llu: %s",
			    (unsigned long long)e->order.total, (unsigned long long)e->order.chunk,
			    strerror(-r));
		return r;
	}
	r = memory_init(&e->memory, e->order.memory_fd, e->order.n_bytes, is_source, e->order.tls);
	if (r < 0) {
		engine_fail(e, ENGINE_HERE, "the memory cannot be mapped: %s", strerror(-r));
		return r;
	}
	e->told_arrived = stripes_done(&e->stripes);
	if (!is_source)
		r = gate_open(e, ports);
	if (r == 0)
		r = tell_open(ports, is_source ? 0 : e->order.n_addresses);
	if (r < 0)
		engine_fail(e, ENGINE_HERE, "%s cannot listen: %s", e->order.node, strerror(-r));
	return r;
}

static void open_epoch(struct engine *e, struct talk *t)
{
	char why[ORDER_WHY_SIZE];
	int r = order_read(t, &e->order, why);

	if (r == 0 && e->order.operation != ORDER_BROADCAST) {
		(void)snprintf(
			why, sizeof(why),
			"the order is wrong: TCP carries broadcasts only; use the engine \"gloo\"");
		r = -EBADMSG;
	}
	if (r == 0 && e->order.gpu[0]) {
		(void)snprintf(
			why, sizeof(why),
			"the order is wrong: TCP carries host memory only; use the engine \"nccl\"");
		r = -EBADMSG;
	}
	if (r == 0 && e->order.tls)
		r = tls_new(e->order.pem_fds, &e->tls, why, sizeof(why));
	if (r < 0) {
		engine_fail(e, ENGINE_HERE, "%s", why);
		return;
	}
	e->is_open = prepare(e) == 0;
}

static void start_epoch(struct engine *e, const json_t *message)
{
	char why[ORDER_WHY_SIZE];

	if (order_read_next(message, &e->next, why) < 0) {
		engine_fail(e, ENGINE_HERE, "%s", why);
		return;
	}
	for (unsigned i = 0; i < e->next.n_ways; i++)
		if (e->next.ways[i].from >= e->order.n_addresses) {
			engine_fail(e, ENGINE_HERE,
				    "the order is wrong: `next.stripes` leave from an address that "
				    "this node has not");
			return;
		}
	e->is_started = true;
	e->started_ns = num_now_ns();
	if (e->next.node[0])
		e->n_out = e->next.n_ways ? e->next.n_ways : 1;
	for (unsigned i = 0; i < e->n_out && !e->end; i++)
		outbound_start(&e->out[i]);
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
	for (unsigned i = 0; i < STRIPES_MAX; i++) {
		inbound_init(&e->in[i], e);
		outbound_init(&e->out[i], e, i);
	}
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
	for (unsigned i = 0; i < STRIPES_MAX; i++) {
		inbound_deinit(&e->in[i]);
		outbound_deinit(&e->out[i]);
	}
	stripes_deinit(&e->stripes);
	memory_deinit(&e->memory);
	SSL_CTX_free(e->tls);
	order_deinit(&e->order);
	json_decref(e->end);
	loop_deinit(&e->loop);
}

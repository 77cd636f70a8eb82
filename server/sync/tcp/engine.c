#include "server/sync/tcp/engine.h"

#include <errno.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/num.h"
#include "server/sync/base/json_fields.h"
#include "server/sync/stream/tls.h"

static struct engine *engine_of(struct engine_loop *d)
{
	return container_of(d, struct engine, engine_loop);
}

/* --- Messages to the agent --------------------------------------------------------------------- */

bool engine_is_awaiting(const struct engine *e)
{
	unsigned n_came = 0;

	if (!e->engine_loop.order.from[0])
		return false;
	for (unsigned i = 0; i < e->n_in; i++)
		n_came += e->in[i].state != INBOUND_NONE;
	return !e->n_in || n_came < e->n_in;
}

const char *engine_over(const struct engine *e, enum engine_side side, unsigned i,
			char ret[ENGINE_OVER_SIZE])
{
	bool is_in = side == ENGINE_IN;
	const struct address *a = is_in ? &e->engine_loop.order.addresses[i] : &e->next.ways[i].to;
	char digits[INET6_ADDRSTRLEN];

	ret[0] = '\0';
	if ((is_in ? e->n_in : e->n_out) > 1 &&
	    getnameinfo((const struct sockaddr *)&a->at, a->size, digits, sizeof(digits), NULL, 0,
			NI_NUMERICHOST) == 0)
		(void)snprintf(ret, ENGINE_OVER_SIZE, " (over %s)", digits);
	return ret;
}

__attribute__((format(printf, 4, 0))) static void fail(struct engine *e, enum engine_side side,
						       const unsigned *stripe, const char *fmt,
						       va_list args)
{
	const char *here = e->engine_loop.order.node, *before = e->engine_loop.order.from,
		   *next = e->next.node;
	const struct blame blames[] = {
		[ENGINE_HERE] = {0},
		[ENGINE_IN] = {.from = before, .to = here, .who = before, .stripe = stripe},
		[ENGINE_OUT] = {.from = here, .to = next, .who = next, .stripe = stripe},
	};

	engine_loop_vfail(&e->engine_loop, &blames[side], fmt, args);
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

	va_start(args, fmt);
	fail(e, side, is_stripe ? &place : NULL, fmt, args);
	va_end(args);
}

static void tcp_count(const struct engine_loop *d, uint64_t *ret_done, uint64_t *ret_sent)
{
	const struct engine *e = container_of(d, const struct engine, engine_loop);

	*ret_done = stripes_done(&e->stripes);
	*ret_sent = 0;
	for (unsigned i = 0; i < e->n_out; i++)
		*ret_sent += e->out[i].n_bytes;
}

/* All stripes use the same cipher, so the first one answers for all. */
static const char *who_encrypts(const struct engine *e, bool is_in)
{
	return (is_in ? e->in[0].socket.is_kernel_receiving : e->out[0].socket.is_kernel_sending)
		       ? "kernel"
		       : "openssl";
}

/* A link; if it has several stripes, each of these as well. */
static json_t *describe_link(const struct engine *e, bool is_in)
{
	unsigned n = is_in ? e->n_in : e->n_out;
	json_t *stripes = n > 1 ? json_array() : NULL, *link;
	struct traffic sum = {0};

	for (unsigned i = 0; i < n; i++) {
		const struct traffic *t = is_in ? &e->in[i].traffic : &e->out[i].traffic;

		traffic_add(&sum, t);
		if (stripes)
			json_array_append_new(stripes, traffic_describe(t, is_in));
	}
	if (n == 0)
		return json_null();
	link = traffic_describe(&sum, is_in);
	if (stripes)
		json_object_set_new(link, "stripes", stripes);
	if (e->tls)
		json_object_set_new(link, "tls", json_string(who_encrypts(e, is_in)));
	return link;
}

static bool is_done(const struct engine *e)
{
	if (!e->engine_loop.is_started || engine_is_awaiting(e))
		return false;
	for (unsigned i = 0; i < e->n_in; i++)
		if (e->in[i].state != INBOUND_DONE)
			return false;
	for (unsigned i = 0; i < e->n_out; i++)
		if (e->out[i].state != OUTBOUND_DONE)
			return false;
	return true;
}

void engine_check_done(struct engine *e)
{
	if (e->engine_loop.is_over || !is_done(e))
		return;
	/* Each stripe may announce its end before the stream is complete. */
	if (stripes_done(&e->stripes) < e->engine_loop.order.total) {
		engine_fail(e, ENGINE_IN, "%s ended the stream, and a part of it is missing",
			    e->engine_loop.order.from);
		return;
	}
	engine_loop_end(&e->engine_loop,
			json_pack("{ss so so}", "op", "done", "in", describe_link(e, true), "out",
				  describe_link(e, false)));
}

static void tcp_on_loop_wake(struct engine_loop *d)
{
	engine_check_done(engine_of(d));
}

/* --- Events ------------------------------------------------------------------------------------ */

void engine_arrived(struct engine *e)
{
	for (unsigned i = 0; i < e->n_out && !e->engine_loop.is_over; i++)
		outbound_push(&e->out[i]);
}

bool engine_count(struct engine *e, enum engine_side side, const struct tcp_socket *l,
		  const struct planned_bytes *planned, struct traffic *ret)
{
	char why[ENGINE_ORDER_WHY_SIZE];
	struct traffic t;
	int r = tcp_socket_traffic(l, &t);

	if (r < 0)
		engine_fail(e, side, "cannot read the kernel's byte counts: %s", strerror(-r));
	else if ((r = traffic_check(&t, planned, why)) < 0)
		engine_fail(e, side, "%s", why);
	else
		*ret = t;
	return r == 0;
}

static void tcp_watch(struct engine_loop *d, uint64_t now_ns)
{
	struct engine *e = engine_of(d);

	gate_check_deadlines(e, now_ns);
	for (unsigned i = 0; i < e->n_out && !d->is_over; i++)
		outbound_check_deadline(&e->out[i], now_ns);
	if (!d->is_over)
		inbound_check_deadlines(e, now_ns);
}

/* Closes the gate, and stops reading and writing. */
static void tcp_end(struct engine_loop *d)
{
	struct engine *e = engine_of(d);

	/* Also after a failure: the memory may be sealed after another epoch, which this node ends. */
	sending_cpus_flush(&e->sending_cpus);
	gate_close(&e->gate);
	for (unsigned i = 0; i < STRIPES_MAX; i++) {
		timer_stop(&e->out[i].retry);
		loop_remove(&e->in[i].source);
		loop_remove(&e->out[i].source);
	}
}

/* --- Messages from the agent ------------------------------------------------------------------- */

/* All ports, if this node has several addresses; "port" is that of the first. */
static json_t *describe_ports(const uint16_t *ports, unsigned n)
{
	json_t *message = json_pack("{si}", "port", n ? (int)ports[0] : 0);
	json_t *all = n > 1 ? json_array() : NULL;

	for (unsigned i = 0; all && i < n; i++)
		json_array_append_new(all, json_integer(ports[i]));
	if (all)
		json_object_set_new(message, "ports", all);
	return message;
}

static const char *tcp_refuse(const struct engine_order *o)
{
	if (o->operation != ENGINE_ORDER_BROADCAST)
		return "TCP carries broadcasts only; use the engine \"gloo\"";
	return o->gpu[0] ? "TCP carries host memory only; use the engine \"nccl\"" : NULL;
}

/* Prepares the stream, its memory and the listening sockets. */
static int tcp_open_epoch(struct engine_loop *d, const json_t *order,
			  char why[ENGINE_ORDER_WHY_SIZE])
{
	struct engine *e = engine_of(d);
	const struct engine_order *o = &d->order;
	bool is_source = !o->from[0];
	uint16_t ports[STRIPES_MAX] = {0};
	int r = o->tls ? tls_new(o->pem_fds, &e->tls, why, ENGINE_ORDER_WHY_SIZE) : 0;

	(void)order;
	if (r < 0)
		return r;
	r = stripes_init(&e->stripes, &o->ranges, o->chunk, is_source);
	if (r < 0) {
		(void)snprintf(why, ENGINE_ORDER_WHY_SIZE,
			       "%llu bytes cannot be cut into pieces of %llu: %s",
			       (unsigned long long)o->total, (unsigned long long)o->chunk,
			       strerror(-r));
		return r;
	}
	r = memory_init(&e->memory, o->memory_fd, o->data_offset, o->n_bytes, is_source, o->tls);
	if (r < 0) {
		(void)snprintf(why, ENGINE_ORDER_WHY_SIZE, "the memory cannot be mapped: %s",
			       strerror(-r));
		return r;
	}
	r = is_source ? 0 : gate_open(e, ports);
	if (r < 0) {
		(void)snprintf(why, ENGINE_ORDER_WHY_SIZE, "%s cannot listen: %s", o->node,
			       strerror(-r));
		return r;
	}
	engine_loop_opened(d, describe_ports(ports, is_source ? 0 : o->n_addresses));
	return 0;
}

static int tcp_start_epoch(struct engine_loop *d, const json_t *order,
			   char why[ENGINE_ORDER_WHY_SIZE])
{
	struct engine *e = engine_of(d);
	int r = engine_order_read_next(order, &e->next, why);

	if (r < 0)
		return r;
	for (unsigned i = 0; i < e->next.n_ways; i++)
		if (e->next.ways[i].from >= d->order.n_addresses)
			return engine_order_wrong(
				why, "`next.stripes` must leave from addresses of this node");
	e->started_ns = num_now_ns();
	if (e->next.node[0])
		e->n_out = e->next.n_ways ? e->next.n_ways : 1;
	for (unsigned i = 0; i < e->n_out && !d->is_over; i++)
		outbound_start(&e->out[i]);
	return 0;
}

static void tcp_report_sockets(struct engine_loop *d)
{
	const struct engine *e = engine_of(d);

	for (unsigned i = 0; i < e->n_in; i++)
		if (e->in[i].state != INBOUND_NONE)
			inbound_report_socket(&e->in[i]);
	for (unsigned i = 0; i < e->n_out; i++)
		outbound_report_socket(&e->out[i]);
}

/* May run before the next node is connected. */
static void tcp_limit(struct engine_loop *d, uint64_t max_rate)
{
	struct engine *e = engine_of(d);

	e->next.max_rate = max_rate;
	for (unsigned i = 0; i < e->n_out; i++)
		outbound_limit(&e->out[i]);
}

int engine_init(struct engine *e)
{
	static const struct engine_loop_kind kind = {
		.name = "weightd-sync-tcp",
		.refuse = tcp_refuse,
		.open = tcp_open_epoch,
		.start = tcp_start_epoch,
		.report_sockets = tcp_report_sockets,
		.limit = tcp_limit,
		.on_wake = tcp_on_loop_wake,
		.watch = tcp_watch,
		.count = tcp_count,
		.end = tcp_end,
	};

	*e = (struct engine){0};
	gate_init(&e->gate);
	for (unsigned i = 0; i < STRIPES_MAX; i++) {
		inbound_init(&e->in[i], e);
		outbound_init(&e->out[i], e, i);
	}
	return engine_loop_init(&e->engine_loop, &kind);
}

void engine_deinit(struct engine *e)
{
	gate_close(&e->gate);
	for (unsigned i = 0; i < STRIPES_MAX; i++) {
		inbound_deinit(&e->in[i]);
		outbound_deinit(&e->out[i]);
	}
	stripes_deinit(&e->stripes);
	memory_deinit(&e->memory);
	SSL_CTX_free(e->tls);
	engine_loop_deinit(&e->engine_loop);
}

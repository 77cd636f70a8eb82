#include "server/sync/tcp/inbound.h"

#include <errno.h>
#include <string.h>

#include "ipc/base/num.h"
#include "server/sync/base/planned_bytes.h"
#include "server/sync/stream/tls.h"
#include "server/sync/tcp/engine.h"

static void inbound_on_again(struct timer *timer);

void inbound_init(struct inbound *in, struct engine *e)
{
	*in = (struct inbound){.engine = e};
	timer_init(&in->again, inbound_on_again);
	tcp_socket_init(&in->socket);
}

void inbound_deinit(struct inbound *in)
{
	loop_remove(&in->source);
	timer_stop(&in->again);
	tcp_socket_close(&in->socket);
}

static bool is_stripe(const struct inbound *in)
{
	return in->engine->n_in > 1;
}

#define fail_in(in, fmt, ...)                                                                      \
	do {                                                                                       \
		char over[ENGINE_OVER_SIZE];                                                       \
                                                                                                   \
		engine_fail_stripe((in)->engine, ENGINE_IN, (in)->place, "%s%s" fmt,               \
				   (in)->engine->engine_loop.order.from,                           \
				   engine_over((in)->engine, ENGINE_IN, (in)->place, over),        \
				   ##__VA_ARGS__);                                                 \
	} while (0)

static void inbound_fail(struct inbound *in, ssize_t error)
{
	char why[256];

	if (error == -EPIPE) {
		fail_in(in, " hung up");
	} else if (error == -EPROTO) {
		tls_explain(in->socket.tls, why, sizeof(why));
		fail_in(in, " cannot be understood: %s", why);
	} else {
		fail_in(in, " cannot be read: %s", strerror((int)-error));
	}
}

/* --- Pieces ------------------------------------------------------------------------------------ */

static ssize_t read_header(struct inbound *in)
{
	while (in->n_header < STRIPES_HEADER_SIZE) {
		ssize_t n = tcp_socket_read(&in->socket, in->header + in->n_header,
					    STRIPES_HEADER_SIZE - in->n_header);

		if (n < 0)
			return n;
		in->n_header += (size_t)n;
	}
	in->n_header = 0;
	return 0;
}

/* In a stream without stripes, pieces follow each other. */
static ssize_t find_piece(struct inbound *in, uint64_t *ret)
{
	ssize_t r;

	if (!is_stripe(in)) {
		*ret = in->n_pieces;
		return 0;
	}
	r = read_header(in);
	if (r < 0)
		return r;
	if (stripes_decode(&in->engine->stripes, in->header, ret) == 0)
		return 0;
	fail_in(in, " sends a header that is no piece of the stream");
	return -EAGAIN;
}

static ssize_t begin_piece(struct inbound *in)
{
	struct stripes *s = &in->engine->stripes;
	uint64_t piece;
	ssize_t r = find_piece(in, &piece);

	if (r < 0)
		return r;
	if (piece == s->n) {
		in->state = INBOUND_END;
		return 0;
	}
	if (!stripes_begin(s, piece)) {
		fail_in(in, " sends a piece of the stream twice");
		return -EAGAIN;
	}
	in->piece = piece;
	in->cursor = stripes_cursor(s, piece);
	in->left = stripes_size(s, piece);
	in->n_pieces++;
	in->state = INBOUND_BODY;
	return 0;
}

/*
 * Reads up to `*room` bytes of the piece. The cursor places them, so they never leave the ranges.
 */
static ssize_t read_piece(struct inbound *in, uint64_t *room)
{
	struct engine *e = in->engine;
	uint64_t most = in->left < *room ? in->left : *room, offset = 0;
	uint64_t size = cursor_piece(&in->cursor, most, &offset);
	ssize_t n = tcp_socket_read(&in->socket, e->memory.map + offset, size);

	if (n < 0)
		return n;
	cursor_advance(&in->cursor, (uint64_t)n);
	stripes_add(&e->stripes, in->piece, (uint64_t)n);
	in->left -= (uint64_t)n;
	in->n_bytes += (uint64_t)n;
	*room -= (uint64_t)n;
	if (in->left == 0)
		in->state = INBOUND_NEXT;
	/* No more is there: another read would be a wasted call. */
	return !in->socket.tls && (uint64_t)n < size ? -EAGAIN : 0;
}

/*
 * Reads up to a chunk. A turn must end even if bytes arrive fast: they must be forwarded, and
 * reported.
 */
static ssize_t read_body(struct inbound *in)
{
	struct engine *e = in->engine;
	uint64_t room = e->engine_loop.order.chunk;
	ssize_t r = 0;

	while (r == 0 && room > 0 && in->state != INBOUND_END)
		r = in->state == INBOUND_NEXT ? begin_piece(in) : read_piece(in, &room);
	if (r == 0 && in->state == INBOUND_NEXT && !is_stripe(in) && in->n_pieces == e->stripes.n)
		in->state = INBOUND_END;
	if (r == 0 && room == 0 && in->socket.tls && SSL_has_pending(in->socket.tls))
		timer_start(&e->engine_loop.loop, &in->again, num_now_ns());
	return r;
}

/* --- The end ----------------------------------------------------------------------------------- */

/* The end of a stripe was its header. */
static ssize_t read_end(struct inbound *in)
{
	while (!is_stripe(in) && in->n_end < STREAM_WORD_SIZE) {
		ssize_t n = tcp_socket_read(&in->socket, in->end + in->n_end,
					    STREAM_WORD_SIZE - in->n_end);

		if (n < 0)
			return n;
		in->n_end += (size_t)n;
	}
	return 0;
}

static void inbound_finish(struct inbound *in)
{
	struct engine *e = in->engine;
	const struct planned_bytes planned = {
		.received = is_stripe(in) ? tcp_planned_stripe(in->n_bytes, in->n_pieces)
					  : tcp_planned(in->n_bytes),
		.sent = tcp_planned_back(),
	};
	ssize_t n;

	if (!is_stripe(in) && memcmp(in->end, STREAM_END, STREAM_WORD_SIZE) != 0) {
		engine_fail(e, ENGINE_IN, "%s sends more than the %llu bytes that it announced",
			    e->engine_loop.order.from,
			    (unsigned long long)e->engine_loop.order.total);
		return;
	}
	n = tcp_socket_write(&in->socket, STREAM_THERE, STREAM_WORD_SIZE);
	if (n != STREAM_WORD_SIZE) {
		inbound_fail(in, n < 0 ? n : -EIO);
		return;
	}
	loop_remove(&in->source);
	if (!engine_count(e, ENGINE_IN, &in->socket, &planned, &in->traffic))
		return;
	in->state = INBOUND_DONE;
	engine_check_done(e);
}

/* --- Turns ------------------------------------------------------------------------------------- */

static void inbound_take(struct inbound *in)
{
	struct engine *e = in->engine;
	uint64_t before = in->n_bytes;
	ssize_t r = 0;

	if (in->state == INBOUND_NEXT || in->state == INBOUND_BODY)
		r = read_body(in);
	if (in->n_bytes > before) {
		in->received_ns = num_now_ns();
		engine_arrived(e);
	}
	if (r == 0 && in->state == INBOUND_END && !e->engine_loop.is_over) {
		r = read_end(in);
		if (r == 0) {
			inbound_finish(in);
			return;
		}
	}
	if (r < 0 && r != -EAGAIN)
		inbound_fail(in, r);
}

static void inbound_on_event(struct source *source, uint32_t events)
{
	(void)events;
	inbound_take(container_of(source, struct inbound, source));
}

static void inbound_on_again(struct timer *timer)
{
	struct inbound *in = container_of(timer, struct inbound, again);

	if (in->source.loop)
		inbound_take(in);
}

void inbound_report_socket(const struct inbound *in)
{
	struct engine *e = in->engine;
	const struct engine_order *o = &e->engine_loop.order;
	const struct planned_bytes planned = {
		.received = tcp_planned_striped(o->total, o->chunk, e->n_in),
		.sent = e->n_in * tcp_planned_back(),
	};

	engine_loop_report_socket(&e->engine_loop, in->socket.fd, o->from, false, &planned);
}

void inbound_accept(struct inbound *in, struct tcp_socket socket, unsigned place)
{
	static const uint8_t accepted = PREAMBLE_ACCEPTED;
	ssize_t n;
	int r;

	in->socket = socket;
	in->place = place;
	in->received_ns = num_now_ns();
	in->state = INBOUND_NEXT;
	inbound_report_socket(in);
	n = tcp_socket_write(&in->socket, &accepted, 1);
	if (n != 1) {
		inbound_fail(in, n < 0 ? n : -EIO);
		return;
	}
	r = loop_add(&in->engine->engine_loop.loop, &in->source, in->socket.fd, EPOLLIN,
		     inbound_on_event);
	if (r < 0)
		inbound_fail(in, r);
	else
		inbound_take(in); /* TLS may have buffered more */
}

/* --- Deadlines --------------------------------------------------------------------------------- */

/* The index of the address that the first missing stripe should have connected to. */
static unsigned find_absent(const struct engine *e)
{
	unsigned came = 0, place = 0;

	for (unsigned i = 0; i < e->n_in; i++)
		if (e->in[i].state != INBOUND_NONE)
			came |= 1u << e->in[i].place;
	while (came >> place & 1)
		place++;
	return place;
}

static void check_absent(struct engine *e, uint64_t now_ns)
{
	uint64_t patience_ns = e->engine_loop.order.stall_ns;
	double seconds = (double)patience_ns / 1e9;
	char over[ENGINE_OVER_SIZE];

	if (e->n_in) {
		/* Its other stripes are connected, so it is alive. */
		if (now_ns > e->started_ns + patience_ns + patience_ns / 4)
			engine_fail_stripe(e, ENGINE_IN, find_absent(e),
					   "%s%s did not connect for %.1f s",
					   e->engine_loop.order.from,
					   engine_over(e, ENGINE_IN, find_absent(e), over), seconds);
	} else if (now_ns <= e->started_ns + patience_ns) {
		return;
	} else if (e->gate.last[0]) {
		engine_fail(e, ENGINE_IN, "%s did not connect for %.1f s; a peer was refused: %s",
			    e->engine_loop.order.from, seconds, e->gate.last);
	} else {
		engine_fail(e, ENGINE_IN, "%s did not connect for %.1f s",
			    e->engine_loop.order.from, seconds);
	}
}

/* A stripe may be idle between two pieces while other stripes receive some. */
static uint64_t last_received_ns(const struct inbound *in)
{
	const struct engine *e = in->engine;
	uint64_t last = in->received_ns;

	if (in->state == INBOUND_NEXT && in->n_header == 0)
		for (unsigned i = 0; i < e->n_in; i++)
			last = e->in[i].received_ns > last ? e->in[i].received_ns : last;
	return last;
}

void inbound_check_deadlines(struct engine *e, uint64_t now_ns)
{
	uint64_t patience_ns = e->engine_loop.order.stall_ns;

	if (engine_is_awaiting(e)) {
		if (e->engine_loop.is_started)
			check_absent(e, now_ns);
	}
	for (unsigned i = 0; i < e->n_in && !e->engine_loop.is_over; i++) {
		struct inbound *in = &e->in[i];

		if (in->state == INBOUND_NONE || in->state == INBOUND_DONE)
			continue;
		/*
		 * A little more than the sender waits, because the sender, if it is alive, can
		 * better name the cause.
		 */
		if (now_ns > last_received_ns(in) + patience_ns + patience_ns / 4)
			fail_in(in, " sent nothing for %.1f s",
				(double)(now_ns - last_received_ns(in)) / 1e9);
	}
}

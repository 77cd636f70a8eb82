#include "server/sync/tcp/outbound.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/base/log.h"
#include "server/sync/base/planned_bytes.h"
#include "server/sync/stream/tls.h"
#include "server/sync/tcp/engine.h"

#define RETRY_NS 50000000u
/* Bytes of a stripe that wait in its socket: other stripes could carry them. */
#define NOT_SENT_MAX 262144

static void outbound_on_event(struct source *source, uint32_t events);
static void outbound_on_retry(struct timer *timer);

void outbound_init(struct outbound *out, struct engine *e, unsigned stripe)
{
	*out = (struct outbound){.engine = e, .stripe = stripe};
	tcp_socket_init(&out->socket);
	timer_init(&out->retry, outbound_on_retry);
}

void outbound_deinit(struct outbound *out)
{
	timer_stop(&out->retry);
	loop_remove(&out->source);
	tcp_socket_close(&out->socket);
}

static bool is_stripe(const struct outbound *out)
{
	return out->engine->n_out > 1;
}

/* The index of our address and of the next node's: both are the same. */
static unsigned place_of(const struct outbound *out)
{
	const struct next *next = &out->engine->next;

	return next->n_ways ? next->ways[out->stripe].from : 0;
}

#define fail_out(out, fmt, ...)                                                                    \
	do {                                                                                       \
		char over[ENGINE_OVER_SIZE];                                                       \
                                                                                                   \
		engine_fail_stripe((out)->engine, ENGINE_OUT, place_of(out), "%s%s" fmt,           \
				   (out)->engine->next.node,                                       \
				   engine_over((out)->engine, ENGINE_OUT, (out)->stripe, over),    \
				   ##__VA_ARGS__);                                                 \
	} while (0)

static void outbound_fail(struct outbound *out, ssize_t error)
{
	char why[256];

	if (error == -EPIPE && out->state <= OUTBOUND_ANSWER) {
		fail_out(out, " hung up before it accepted the stream");
	} else if (error == -EPIPE) {
		fail_out(out, " hung up");
	} else if (error == -ETIMEDOUT) {
		fail_out(out, " took nothing for %.1f s",
			 (double)out->engine->engine_loop.order.stall_ns / 1e9);
	} else if (error == -EPROTO) {
		tls_explain(out->socket.tls, why, sizeof(why));
		fail_out(out, " is not the expected node, or refused us: %s", why);
	} else {
		fail_out(out, " cannot be reached: %s", strerror((int)-error));
	}
}

/* --- Connecting -------------------------------------------------------------------------------- */

static bool may_heal(int error)
{
	return error == -ECONNREFUSED || error == -ENETUNREACH || error == -EHOSTUNREACH ||
	       error == -ENETDOWN;
}

/* The deadline is enforced by outbound_check_deadline(). */
static void try_again(struct outbound *out, int error)
{
	loop_remove(&out->source);
	tcp_socket_close(&out->socket);
	if (may_heal(error))
		timer_start(&out->engine->engine_loop.loop, &out->retry, num_now_ns() + RETRY_NS);
	else
		outbound_fail(out, error);
}

/*
 * Binds to our address at the same index, if the order has it, to leave by the interface of that
 * address.
 */
static int bind_ours(const struct outbound *out, int fd)
{
	const struct engine *e = out->engine;
	const struct address *ours = &e->engine_loop.order.addresses[place_of(out)];
	int on = 1;

	if (!e->next.n_ways)
		return 0;
	/* Without this option, bind() takes the port for this address alone, and ports are few. */
	(void)setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof(on));
	return bind(fd, (const struct sockaddr *)&ours->at, ours->size) < 0 ? -errno : 0;
}

static uint64_t rate_of(const struct outbound *out)
{
	return out->engine->next.max_rate / out->engine->n_out;
}

static int open_socket(struct outbound *out)
{
	struct engine *e = out->engine;
	const struct next *next = &e->next;
	const struct address *a = next->n_ways ? &next->ways[out->stripe].to : &next->address;
	int fd = socket(a->at.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), r;
	SSL *tls = NULL;

	if (fd < 0)
		return -errno;
	if (e->tls && !(tls = tls_session(e->tls, fd, false, next->node))) {
		(void)fd_close(fd);
		return -ENOMEM;
	}
	tcp_socket_tune(fd, e->engine_loop.order.stall_ns, rate_of(out));
	if (is_stripe(out))
		tcp_socket_keep_short(fd, NOT_SENT_MAX);
	tcp_socket_open(&out->socket, fd, tls, true);
	r = bind_ours(out, fd);
	if (r < 0)
		return r;
	if (connect(fd, (const struct sockaddr *)&a->at, a->size) < 0 && errno != EINPROGRESS)
		return -errno;
	return loop_add(&e->engine_loop.loop, &out->source, fd, EPOLLIN | EPOLLOUT,
			outbound_on_event);
}

static void outbound_on_retry(struct timer *timer)
{
	struct outbound *out = container_of(timer, struct outbound, retry);
	int r = open_socket(out);

	if (r < 0)
		try_again(out, r);
}

void outbound_start(struct outbound *out)
{
	const struct engine *e = out->engine;
	struct preamble p = {
		.epoch = e->engine_loop.order.epoch,
		.n_bytes = e->engine_loop.order.total,
		.stripe = out->stripe,
		.n_stripes = is_stripe(out) ? e->n_out : 0,
	};

	memcpy(p.sync, e->engine_loop.order.sync, sizeof(p.sync));
	memcpy(p.token, e->next.token, sizeof(p.token));
	memcpy(p.from, e->engine_loop.order.node, sizeof(p.from));
	memcpy(p.to, e->next.node, sizeof(p.to));
	preamble_encode(&p, out->preamble);
	out->moved_ns = num_now_ns();
	out->state = OUTBOUND_CONNECTING;
	outbound_on_retry(&out->retry);
}

/* The plan is that of all stripes together. */
static void report_socket(const struct outbound *out)
{
	struct engine *e = out->engine;
	const struct engine_order *o = &e->engine_loop.order;
	const struct planned_bytes planned = {
		.sent = tcp_planned_striped(o->total, o->chunk, e->n_out),
		.received = e->n_out * tcp_planned_back(),
	};

	engine_loop_report_socket(&e->engine_loop, out->socket.fd, e->next.node, true, &planned);
}

/* --- The stream -------------------------------------------------------------------------------- */

/* 0: all is written. */
static ssize_t write_rest(struct outbound *out, const void *from, size_t size)
{
	while (out->n_written < size) {
		ssize_t n = tcp_socket_write(&out->socket, (const char *)from + out->n_written,
					     size - out->n_written);

		if (n < 0)
			return n;
		out->n_written += (size_t)n;
	}
	out->n_written = 0;
	return 0;
}

/* False: no piece that has begun to arrive is left. */
static bool take_piece(struct outbound *out)
{
	struct stripes *s = &out->engine->stripes;

	if (!stripes_take(s, !is_stripe(out), &out->piece))
		return false;
	out->has_piece = true;
	out->at = 0;
	out->cursor = stripes_cursor(s, out->piece);
	out->n_pieces++;
	out->is_header_due = is_stripe(out);
	stripes_encode(s, out->piece, out->header);
	return true;
}

/* Writes the bytes of the piece that are in memory, up to `*room`. */
static ssize_t write_piece(struct outbound *out, uint64_t *room)
{
	struct engine *e = out->engine;
	uint64_t offset = 0, size, left;

	while ((left = stripes_came(&e->stripes, out->piece) - out->at) > 0 && *room > 0) {
		ssize_t n;

		size = cursor_piece(&out->cursor, left < *room ? left : *room, &offset);
		if (e->engine_loop.order.from[0]) /* else the memory is sealed */
			sending_cpus_add(&e->sending_cpus);
		n = tcp_socket_write_memory(&out->socket, &e->memory, offset, size);
		if (n < 0)
			return n;
		cursor_advance(&out->cursor, (uint64_t)n);
		out->at += (uint64_t)n;
		out->n_bytes += (uint64_t)n;
		*room -= (uint64_t)n;
	}
	out->has_piece = out->at < stripes_size(&e->stripes, out->piece);
	return 0;
}

/* Writes up to a chunk of the bytes in memory. 0: all is written, or the turn is over. */
static ssize_t write_body(struct outbound *out)
{
	uint64_t room = out->engine->engine_loop.order.chunk;
	ssize_t r = 0;

	while (room > 0 && (out->has_piece || take_piece(out))) {
		if (out->is_header_due)
			r = write_rest(out, out->header, STRIPES_HEADER_SIZE);
		if (r < 0)
			return r;
		out->is_header_due = false;
		r = write_piece(out, &room);
		if (r < 0)
			return r;
		if (out->has_piece && room > 0)
			return 0; /* the rest has not arrived yet */
	}
	out->is_full = room == 0;
	return 0;
}

static ssize_t write_end(struct outbound *out)
{
	if (!is_stripe(out))
		return write_rest(out, STREAM_END, STREAM_WORD_SIZE);
	stripes_encode_end(&out->engine->stripes, out->header);
	return write_rest(out, out->header, STRIPES_HEADER_SIZE);
}

static ssize_t send_more(struct outbound *out)
{
	ssize_t r = 0;

	out->is_full = false;
	if (out->state == OUTBOUND_PREAMBLE) {
		r = write_rest(out, out->preamble, PREAMBLE_SIZE);
		if (r == 0)
			out->state = OUTBOUND_ANSWER;
	}
	if (r == 0 && out->state == OUTBOUND_BODY) {
		r = write_body(out);
		if (r == 0 && !out->has_piece && stripes_all_taken(&out->engine->stripes))
			out->state = OUTBOUND_END;
	}
	if (r == 0 && out->state == OUTBOUND_END) {
		r = write_end(out);
		if (r == 0)
			out->state = OUTBOUND_WORD;
	}
	if (r == -EAGAIN)
		out->is_full = true;
	return r;
}

static void outbound_finish(struct outbound *out)
{
	struct engine *e = out->engine;
	const struct planned_bytes planned = {
		.received = tcp_planned_back(),
		.sent = is_stripe(out) ? tcp_planned_stripe(out->n_bytes, out->n_pieces)
				       : tcp_planned(out->n_bytes),
	};

	if (memcmp(out->word, STREAM_THERE, STREAM_WORD_SIZE) != 0) {
		fail_out(out, " does not speak our protocol");
		return;
	}
	loop_remove(&out->source);
	if (!engine_count(e, ENGINE_OUT, &out->socket, &planned, &out->traffic))
		return;
	out->state = OUTBOUND_DONE;
	engine_check_done(e);
}

static ssize_t read_answer(struct outbound *out)
{
	uint8_t answer;
	ssize_t n = tcp_socket_read(&out->socket, &answer, 1);

	if (n < 0)
		return n;
	if (answer == PREAMBLE_ACCEPTED)
		out->state = OUTBOUND_BODY;
	else
		fail_out(out, " refused the stream");
	return 0;
}

static ssize_t read_word(struct outbound *out)
{
	while (out->n_word < STREAM_WORD_SIZE) {
		ssize_t n = tcp_socket_read(&out->socket, out->word + out->n_word,
					    STREAM_WORD_SIZE - out->n_word);

		if (n < 0)
			return n;
		out->n_word += (size_t)n;
	}
	outbound_finish(out);
	return 0;
}

/* The peer has nothing to send while it receives, but it may close. */
static ssize_t read_nothing(struct outbound *out)
{
	char c;
	ssize_t n = tcp_socket_read(&out->socket, &c, 1);

	if (n > 0)
		fail_out(out, " sent bytes before the end of the stream");
	return n > 0 ? 0 : n;
}

static ssize_t read_more(struct outbound *out)
{
	switch (out->state) {
	case OUTBOUND_ANSWER:
		return read_answer(out);
	case OUTBOUND_WORD:
		return read_word(out);
	default:
		return read_nothing(out);
	}
}

static int outbound_handshake(struct outbound *out)
{
	int r = tcp_socket_handshake(&out->socket);

	if (r == 0)
		out->state = OUTBOUND_PREAMBLE;
	if (out->socket.is_kernel_sending)
		log_info("%s: the kernel does TLS towards %s", out->engine->engine_loop.order.node,
			 out->engine->next.node);
	out->is_full = r == -EAGAIN && SSL_want_write(out->socket.tls);
	return r;
}

static int check_connection(struct outbound *out)
{
	int error = 0;
	socklen_t size = sizeof(error);

	if (getsockopt(out->socket.fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0)
		return -errno;
	if (error == 0)
		out->state = OUTBOUND_HANDSHAKE;
	return -error;
}

/* Reads before it writes: the peer's last message contains more than the fact that it closed. */
static void outbound_advance(struct outbound *out, bool is_readable)
{
	struct engine *e = out->engine;
	ssize_t r = 0;

	if (out->state == OUTBOUND_HANDSHAKE)
		r = outbound_handshake(out);
	if (r == 0 && is_readable && out->state > OUTBOUND_PREAMBLE) {
		r = read_more(out);
		r = r == -EAGAIN ? 0 : r;
	}
	if (r == 0 && !e->engine_loop.is_over && out->state != OUTBOUND_DONE)
		r = send_more(out);
	if (e->engine_loop.is_over || out->state == OUTBOUND_DONE)
		return;
	if (r < 0 && r != -EAGAIN)
		outbound_fail(out, r);
	else
		loop_modify(&out->source, out->is_full ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

static void outbound_on_event(struct source *source, uint32_t events)
{
	struct outbound *out = container_of(source, struct outbound, source);

	if (out->state == OUTBOUND_CONNECTING) {
		int r = check_connection(out);

		if (r < 0) {
			try_again(out, r);
			return;
		}
		report_socket(out);
	}
	outbound_advance(out, events & ~(uint32_t)EPOLLOUT);
}

void outbound_report_socket(const struct outbound *out)
{
	if (out->state > OUTBOUND_CONNECTING)
		report_socket(out);
}

void outbound_limit(const struct outbound *out)
{
	if (out->socket.fd >= 0)
		tcp_socket_limit(out->socket.fd, rate_of(out));
}

void outbound_push(struct outbound *out)
{
	if (out->state == OUTBOUND_BODY && !out->is_full)
		outbound_advance(out, false);
}

/* The next node has work that it has not done. */
static bool is_owed(const struct outbound *out)
{
	const struct stripes *s = &out->engine->stripes;

	return out->state != OUTBOUND_BODY || out->is_header_due ||
	       (out->has_piece && out->at < stripes_came(s, out->piece)) ||
	       traffic_is_queued(out->socket.fd);
}

void outbound_check_deadline(struct outbound *out, uint64_t now_ns)
{
	uint64_t acknowledged;
	double seconds = (double)(now_ns - out->moved_ns) / 1e9;

	if (out->state == OUTBOUND_NONE || out->state == OUTBOUND_DONE)
		return;
	acknowledged = tcp_socket_acknowledged(&out->socket);
	if (out->n_bytes != out->seen_at || acknowledged != out->seen_acknowledged || !is_owed(out)) {
		out->seen_at = out->n_bytes;
		out->seen_acknowledged = acknowledged;
		out->moved_ns = now_ns;
	} else if (now_ns > out->moved_ns + out->engine->engine_loop.order.stall_ns) {
		if (out->state == OUTBOUND_CONNECTING)
			fail_out(out, " could not be connected to for %.1f s", seconds);
		else
			fail_out(out, " took nothing for %.1f s", seconds);
	}
}

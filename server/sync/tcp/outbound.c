#include "server/sync/tcp/outbound.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/sync/base/planned.h"
#include "server/sync/tcp/engine.h"
#include "server/sync/tcp/tls.h"

#define RETRY_NS 50000000u

static void on_event(struct source *source, uint32_t events);
static void on_retry(struct timer *timer);

void outbound_init(struct outbound *out)
{
	*out = (struct outbound){0};
	link_init(&out->link);
	timer_init(&out->retry, on_retry);
}

void outbound_deinit(struct outbound *out)
{
	timer_stop(&out->retry);
	loop_remove(&out->source);
	link_close(&out->link);
}

static void fail(struct engine *e, ssize_t error)
{
	const char *to = e->next.node;
	char why[256];

	if (error == -EPIPE && e->out.state <= OUTBOUND_ANSWER) {
		engine_fail(e, ENGINE_OUT, "%s hung up before it took the stream", to);
	} else if (error == -EPIPE) {
		engine_fail(e, ENGINE_OUT, "%s hung up", to);
	} else if (error == -ETIMEDOUT) {
		engine_fail(e, ENGINE_OUT, "%s took nothing for %.1f s", to,
			    (double)e->order.stall_ns / 1e9);
	} else if (error == -EPROTO) {
		tls_explain(e->out.link.tls, why, sizeof(why));
		engine_fail(e, ENGINE_OUT, "%s is not who it should be, or refused us: %s", to, why);
	} else {
		engine_fail(e, ENGINE_OUT, "%s cannot be reached: %s", to, strerror((int)-error));
	}
}

/* --- Connecting -------------------------------------------------------------------------------- */

static bool may_heal(int error)
{
	return error == -ECONNREFUSED || error == -ENETUNREACH || error == -EHOSTUNREACH ||
	       error == -ENETDOWN;
}

/* The end of the time for this is outbound_look()'s. */
static void try_again(struct engine *e, int error)
{
	struct outbound *out = &e->out;

	loop_remove(&out->source);
	link_close(&out->link);
	if (may_heal(error))
		timer_start(&e->loop, &out->retry, num_now_ns() + RETRY_NS);
	else
		fail(e, error);
}

static int open_socket(struct engine *e)
{
	const struct address *a = &e->next.address;
	int fd = socket(a->at.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	SSL *tls = NULL;

	if (fd < 0)
		return -errno;
	if (e->tls && !(tls = tls_session(e->tls, fd, false, e->next.node))) {
		(void)fd_close(fd);
		return -ENOMEM;
	}
	link_tune(fd, e->order.stall_ns, e->next.max_rate);
	link_open(&e->out.link, fd, tls, true);
	if (connect(fd, (const struct sockaddr *)&a->at, a->size) < 0 && errno != EINPROGRESS)
		return -errno;
	return loop_add(&e->loop, &e->out.source, fd, EPOLLIN | EPOLLOUT, on_event);
}

static void on_retry(struct timer *timer)
{
	struct engine *e = container_of(timer, struct engine, out.retry);
	int r = open_socket(e);

	if (r < 0)
		try_again(e, r);
}

void outbound_start(struct engine *e)
{
	struct outbound *out = &e->out;
	struct preamble p = {.epoch = e->order.epoch, .n_bytes = e->order.total};

	memcpy(p.sync, e->order.sync, sizeof(p.sync));
	memcpy(p.token, e->next.token, sizeof(p.token));
	memcpy(p.from, e->order.node, sizeof(p.from));
	memcpy(p.to, e->next.node, sizeof(p.to));
	preamble_encode(&p, out->preamble);
	cursor_init(&out->cursor, &e->order.ranges);
	out->moved_ns = num_now_ns();
	out->state = OUTBOUND_CONNECTING;
	on_retry(&out->retry);
}

/* --- The stream -------------------------------------------------------------------------------- */

/* 0 when all of it is written. */
static ssize_t write_rest(struct outbound *out, const void *from, size_t size)
{
	while (out->n_written < size) {
		ssize_t n = link_write(&out->link, (const char *)from + out->n_written,
				       size - out->n_written);

		if (n < 0)
			return n;
		out->n_written += (size_t)n;
	}
	out->n_written = 0;
	return 0;
}

/* One turn: up to a chunk of what is in memory. 0: all of it is written, or the turn is over. */
static ssize_t write_body(struct engine *e)
{
	struct outbound *out = &e->out;
	uint64_t room = e->order.chunk, offset, size;

	for (;;) {
		uint64_t left = e->arrived - out->cursor.at;
		ssize_t n;

		size = cursor_piece(&out->cursor, left < room ? left : room, &offset);
		if (size == 0)
			break;
		n = link_write_memory(&out->link, &e->memory, offset, size);
		if (n < 0)
			return n;
		cursor_advance(&out->cursor, (uint64_t)n);
		room -= (uint64_t)n;
	}
	out->is_full = out->cursor.at < e->arrived;
	return 0;
}

static ssize_t send_more(struct engine *e)
{
	struct outbound *out = &e->out;
	ssize_t r = 0;

	out->is_full = false;
	if (out->state == OUTBOUND_PREAMBLE) {
		r = write_rest(out, out->preamble, PREAMBLE_SIZE);
		if (r == 0)
			out->state = OUTBOUND_ANSWER;
	}
	if (r == 0 && out->state == OUTBOUND_BODY) {
		r = write_body(e);
		if (r == 0 && out->cursor.at == e->order.total)
			out->state = OUTBOUND_END;
	}
	if (r == 0 && out->state == OUTBOUND_END) {
		r = write_rest(out, STREAM_END, STREAM_WORD_SIZE);
		if (r == 0)
			out->state = OUTBOUND_WORD;
	}
	if (r == -EAGAIN)
		out->is_full = true;
	return r;
}

static void finish(struct engine *e)
{
	struct outbound *out = &e->out;

	if (memcmp(out->word, STREAM_THERE, STREAM_WORD_SIZE) != 0) {
		engine_fail(e, ENGINE_OUT, "%s does not speak our protocol", e->next.node);
		return;
	}
	loop_remove(&out->source);
	if (!engine_count(e, ENGINE_OUT, &out->link, tcp_planned_back(),
			  tcp_planned(e->order.total), &out->traffic))
		return;
	out->state = OUTBOUND_DONE;
	engine_look(e);
}

static ssize_t read_answer(struct engine *e)
{
	uint8_t answer;
	ssize_t n = link_read(&e->out.link, &answer, 1);

	if (n < 0)
		return n;
	if (answer == PREAMBLE_ACCEPTED)
		e->out.state = OUTBOUND_BODY;
	else
		engine_fail(e, ENGINE_OUT, "%s refused the stream", e->next.node);
	return 0;
}

static ssize_t read_word(struct engine *e)
{
	struct outbound *out = &e->out;

	while (out->n_word < STREAM_WORD_SIZE) {
		ssize_t n = link_read(&out->link, out->word + out->n_word,
				      STREAM_WORD_SIZE - out->n_word);

		if (n < 0)
			return n;
		out->n_word += (size_t)n;
	}
	finish(e);
	return 0;
}

/* It has nothing to say while it takes: but it may hang up. */
static ssize_t read_nothing(struct engine *e)
{
	char c;
	ssize_t n = link_read(&e->out.link, &c, 1);

	if (n > 0)
		engine_fail(e, ENGINE_OUT, "%s speaks before all was sent", e->next.node);
	return n > 0 ? 0 : n;
}

static ssize_t read_more(struct engine *e)
{
	switch (e->out.state) {
	case OUTBOUND_ANSWER:
		return read_answer(e);
	case OUTBOUND_WORD:
		return read_word(e);
	default:
		return read_nothing(e);
	}
}

static int handshake(struct outbound *out)
{
	int r = link_handshake(&out->link);

	if (r == 0)
		out->state = OUTBOUND_PREAMBLE;
	out->is_full = r == -EAGAIN && SSL_want_write(out->link.tls);
	return r;
}

static int check_connection(struct engine *e)
{
	int error = 0;
	socklen_t size = sizeof(error);

	if (getsockopt(e->out.link.fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0)
		return -errno;
	if (error == 0)
		e->out.state = OUTBOUND_HANDSHAKE;
	return -error;
}

/* Reads before it writes: what the other end said before it hung up says more than that it hung up. */
static void advance(struct engine *e, bool is_readable)
{
	struct outbound *out = &e->out;
	ssize_t r = 0;

	if (out->state == OUTBOUND_HANDSHAKE)
		r = handshake(out);
	if (r == 0 && is_readable && out->state > OUTBOUND_PREAMBLE) {
		r = read_more(e);
		r = r == -EAGAIN ? 0 : r;
	}
	if (r == 0 && !engine_is_over(e) && out->state != OUTBOUND_DONE)
		r = send_more(e);
	if (engine_is_over(e) || out->state == OUTBOUND_DONE)
		return;
	if (r < 0 && r != -EAGAIN)
		fail(e, r);
	else
		loop_modify(&out->source, out->is_full ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

static void on_event(struct source *source, uint32_t events)
{
	struct engine *e = container_of(source, struct engine, out.source);

	if (e->out.state == OUTBOUND_CONNECTING) {
		int r = check_connection(e);

		if (r < 0) {
			try_again(e, r);
			return;
		}
	}
	advance(e, events & ~(uint32_t)EPOLLOUT);
}

void outbound_push(struct engine *e)
{
	if (e->out.state == OUTBOUND_BODY && !e->out.is_full)
		advance(e, false);
}

/* Whether the next node has something to do that it has not done. */
static bool is_owed(struct engine *e)
{
	return e->out.state != OUTBOUND_BODY || e->out.cursor.at < e->arrived ||
	       link_is_queued(&e->out.link);
}

void outbound_look(struct engine *e, uint64_t now_ns)
{
	struct outbound *out = &e->out;
	uint64_t acknowledged;

	if (out->state == OUTBOUND_NONE || out->state == OUTBOUND_DONE)
		return;
	acknowledged = link_acknowledged(&out->link);
	if (out->cursor.at != out->seen_at || acknowledged != out->seen_acknowledged || !is_owed(e)) {
		out->seen_at = out->cursor.at;
		out->seen_acknowledged = acknowledged;
		out->moved_ns = now_ns;
	} else if (now_ns > out->moved_ns + e->order.stall_ns) {
		engine_fail(e, ENGINE_OUT,
			    out->state == OUTBOUND_CONNECTING
				    ? "%s could not be connected to for %.1f s"
				    : "%s took nothing for %.1f s",
			    e->next.node, (double)(now_ns - out->moved_ns) / 1e9);
	}
}

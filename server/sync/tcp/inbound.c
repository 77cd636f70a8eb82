#include "server/sync/tcp/inbound.h"

#include <errno.h>
#include <string.h>

#include "ipc/base/num.h"
#include "server/sync/base/planned.h"
#include "server/sync/tcp/engine.h"
#include "server/sync/tcp/tls.h"

static void on_again(struct timer *timer);

void inbound_init(struct inbound *in)
{
	*in = (struct inbound){0};
	timer_init(&in->again, on_again);
	link_init(&in->link);
}

void inbound_deinit(struct inbound *in)
{
	loop_remove(&in->source);
	timer_stop(&in->again);
	link_close(&in->link);
}

static void fail(struct engine *e, ssize_t error)
{
	const char *from = e->order.from;
	char why[256];

	if (error == -EPIPE) {
		engine_fail(e, ENGINE_IN, "%s hung up", from);
	} else if (error == -EPROTO) {
		tls_explain(e->in.link.tls, why, sizeof(why));
		engine_fail(e, ENGINE_IN, "%s cannot be understood: %s", from, why);
	} else {
		engine_fail(e, ENGINE_IN, "%s cannot be read: %s", from, strerror((int)-error));
	}
}

/* One turn: up to a chunk. Bytes go where the cursor says, and so never outside the ranges. */
static ssize_t read_body(struct engine *e)
{
	struct inbound *in = &e->in;
	uint64_t room = e->order.chunk, offset, size;
	ssize_t n = 0;

	while ((size = cursor_piece(&in->cursor, room, &offset)) > 0) {
		n = link_read(&in->link, e->memory.map + offset, size);
		if (n < 0)
			break;
		cursor_advance(&in->cursor, (uint64_t)n);
		room -= (uint64_t)n;
		if (!in->link.tls && (uint64_t)n < size)
			break; /* there is no more: to ask again would only be a call */
	}
	/* A turn has to end, however fast bytes come: they are to be passed on, and told of. */
	if (n >= 0 && room == 0 && in->link.tls && SSL_has_pending(in->link.tls))
		timer_start(&e->loop, &in->again, num_now_ns());
	if (in->cursor.at == e->order.total)
		in->state = INBOUND_END;
	return n < 0 ? n : 0;
}

static ssize_t read_end(struct inbound *in)
{
	while (in->n_end < STREAM_WORD_SIZE) {
		ssize_t n = link_read(&in->link, in->end + in->n_end, STREAM_WORD_SIZE - in->n_end);

		if (n < 0)
			return n;
		in->n_end += (size_t)n;
	}
	return 0;
}

static void finish(struct engine *e)
{
	struct inbound *in = &e->in;
	ssize_t n;

	if (memcmp(in->end, STREAM_END, STREAM_WORD_SIZE) != 0) {
		engine_fail(e, ENGINE_IN, "%s sends more than the %llu bytes that it announced",
			    e->order.from, (unsigned long long)e->order.total);
		return;
	}
	n = link_write(&in->link, STREAM_THERE, STREAM_WORD_SIZE);
	if (n != STREAM_WORD_SIZE) {
		fail(e, n < 0 ? n : -EIO);
		return;
	}
	loop_remove(&in->source);
	if (!engine_count(e, ENGINE_IN, &in->link, tcp_planned(e->order.total), tcp_planned_back(),
			  &in->traffic))
		return;
	in->state = INBOUND_DONE;
	engine_look(e);
}

static void take(struct engine *e)
{
	struct inbound *in = &e->in;
	uint64_t before = in->cursor.at;
	ssize_t r = 0;

	if (in->state == INBOUND_BODY)
		r = read_body(e);
	if (in->cursor.at > before) {
		in->heard_ns = num_now_ns();
		engine_arrived(e, in->cursor.at);
	}
	if (r == 0 && in->state == INBOUND_END && !engine_is_over(e)) {
		r = read_end(in);
		if (r == 0) {
			finish(e);
			return;
		}
	}
	if (r < 0 && r != -EAGAIN)
		fail(e, r);
}

static void on_event(struct source *source, uint32_t events)
{
	(void)events;
	take(container_of(source, struct engine, in.source));
}

static void on_again(struct timer *timer)
{
	struct engine *e = container_of(timer, struct engine, in.again);

	if (e->in.source.loop)
		take(e);
}

void inbound_accept(struct engine *e, struct link link)
{
	static const uint8_t accepted = PREAMBLE_ACCEPTED;
	struct inbound *in = &e->in;
	ssize_t n;
	int r;

	in->link = link;
	in->heard_ns = num_now_ns();
	in->state = INBOUND_BODY;
	cursor_init(&in->cursor, &e->order.ranges);
	n = link_write(&in->link, &accepted, 1);
	if (n != 1) {
		fail(e, n < 0 ? n : -EIO);
		return;
	}
	r = loop_add(&e->loop, &in->source, in->link.fd, EPOLLIN, on_event);
	if (r < 0)
		fail(e, r);
	else
		take(e); /* TLS may have read on */
}

void inbound_look(struct engine *e, uint64_t now_ns)
{
	struct inbound *in = &e->in;
	uint64_t patience_ns = e->order.stall_ns;
	double seconds = (double)patience_ns / 1e9;

	if (in->state == INBOUND_AWAITED && e->is_started && now_ns > e->started_ns + patience_ns) {
		if (e->gate.last[0])
			engine_fail(e, ENGINE_IN,
				    "%s did not come for %.1f s; somebody was refused: %s",
				    e->order.from, seconds, e->gate.last);
		else
			engine_fail(e, ENGINE_IN, "%s did not come for %.1f s", e->order.from,
				    seconds);
	}
	if (in->state != INBOUND_BODY && in->state != INBOUND_END)
		return;
	/* A little more than at the other end, which, if it lives, knows better who is to blame. */
	if (now_ns > in->heard_ns + patience_ns + patience_ns / 4)
		engine_fail(e, ENGINE_IN, "%s sent nothing for %.1f s", e->order.from,
			    (double)(now_ns - in->heard_ns) / 1e9);
}

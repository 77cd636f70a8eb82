#include "server/sync/net/connection.h"

#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/sync/base/json_fields.h"
#include "server/sync/base/json_packet.h"

#define PROTOCOL 1
#define ROUND_SIZE (1 * MIB) /* moved per turn */
#define SILENCE_BEATS 5
#define HELLO_MAX 4096
#define TYPE_MAX 32
#define BYE_MAX 300
#define CHECK_NS 5000000000u /* the longest time that an expired certificate stays accepted */

static void connection_on_event(struct source *source, uint32_t events);
static void connection_on_deadline(struct timer *timer);
static void connection_on_check(struct timer *timer);

static void connection_on_end(struct timer *timer)
{
	struct connection *c = container_of(timer, struct connection, end);

	c->manner->events->on_end(c);
}

int connection_new(const struct connection_manner *manner, SSL_CTX *context, int fd,
		   const struct address *address, bool dialled, void *owner, struct connection **ret)
{
	struct connection *c = calloc(1, sizeof(*c));
	const uint64_t silence_ms = SILENCE_BEATS * manner->heartbeat_ns / 1000000;
	const unsigned user_timeout = silence_ms < INT_MAX ? (unsigned)silence_ms : INT_MAX;
	const int on = 1;
	int r = -ENOMEM;

	if (!c) {
		(void)fd_close(fd);
		return r;
	}
	*c = (struct connection){
		.owner = owner,
		.manner = manner,
		.state = dialled ? CONNECTION_CONNECTING : CONNECTION_HANDSHAKE,
		.dialled = dialled,
		.fd = fd,
		.address = *address,
		.opened_ns = num_now_ns(),
	};
	list_init(&c->link);
	frame_decoder_init(&c->in);
	outbox_init(&c->out);
	blob_init(&c->blob);
	timer_init(&c->deadline, connection_on_deadline);
	timer_init(&c->check, connection_on_check);
	timer_init(&c->end, connection_on_end);
	/* An error does no harm: both only detect a lost peer faster. */
	(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	(void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_timeout, sizeof(user_timeout));
	r = tls_init(&c->tls, context, fd, dialled);
	if (r == 0)
		r = loop_add(manner->loop, &c->source, fd, dialled ? EPOLLOUT : EPOLLIN,
			     connection_on_event);
	if (r < 0) {
		(void)connection_free(c);
		return r;
	}
	timer_start(manner->loop, &c->deadline, c->opened_ns + CONNECTION_OPEN_NS);
	*ret = c;
	return 0;
}

struct connection *connection_free(struct connection *c)
{
	if (!c)
		return NULL;
	list_remove(&c->link);
	timer_stop(&c->deadline);
	timer_stop(&c->check);
	timer_stop(&c->end);
	loop_remove(&c->source);
	if (c->tls.ssl)
		tls_end(&c->tls);
	tls_deinit(&c->tls);
	(void)fd_close(c->fd);
	frame_decoder_deinit(&c->in);
	outbox_deinit(&c->out);
	blob_deinit(&c->blob);
	free(c);
	return NULL;
}

/* --- End --------------------------------------------------------------------------------------- */

/* Sends the reason to the peer, if the socket has room. */
static void say_bye(struct connection *c)
{
	cleanup(json_freep) json_t *bye = NULL;
	struct outbox o;
	const void *data;
	size_t size, n;

	if (!outbox_is_between(&c->out))
		return;
	bye = json_pack("{s:s, s:s%}", "type", "bye", "why", c->why, strnlen(c->why, BYE_MAX));
	outbox_init(&o);
	if (bye && outbox_put(&o, bye, true) == 0 && outbox_next(&o, &data, &size) == 1)
		(void)tls_write(&c->tls, data, size, &n);
	outbox_deinit(&o);
}

void connection_doom(struct connection *c, const char *fmt, ...)
{
	enum connection_state state = c->state;
	va_list args;

	if (state == CONNECTION_DOOMED)
		return;
	va_start(args, fmt);
	(void)vsnprintf(c->why, sizeof(c->why), fmt, args);
	va_end(args);
	c->state = CONNECTION_DOOMED;
	loop_remove(&c->source);
	timer_stop(&c->deadline);
	timer_stop(&c->check);
	if (state == CONNECTION_HELLO || state == CONNECTION_UP)
		say_bye(c);
	timer_start(c->manner->loop, &c->end, num_now_ns());
}

/* Handles an error of TLS. */
static void connection_fail(struct connection *c, int r)
{
	if (r == -EPROTO)
		connection_doom(c, "%s", c->tls.why);
	else if (r == -EPIPE && c->state < CONNECTION_UP)
		connection_doom(c, "it hung up before it said who it is");
	else if (r == -EPIPE)
		connection_doom(c, "it hung up");
	else
		connection_doom(c, "it lost the connection: %s", strerror(-r));
}

bool connection_is_silent(const struct connection *c)
{
	return num_now_ns() - c->heard_ns > c->manner->heartbeat_ns;
}

/* --- Sending ----------------------------------------------------------------------------------- */

static void connection_watch(struct connection *c)
{
	if (c->state != CONNECTION_DOOMED)
		loop_modify(&c->source,
			    (c->held ? 0 : EPOLLIN) | (outbox_is_empty(&c->out) ? 0 : EPOLLOUT));
}

/* Writes queued bytes, as far as there is room, for one turn. */
static void write_out(struct connection *c)
{
	size_t done = 0, n;
	const void *data;
	int r = 0;

	while (c->state != CONNECTION_DOOMED && done < ROUND_SIZE) {
		r = outbox_next(&c->out, &data, &n);
		if (r < 0) {
			connection_doom(c, "it cannot be sent a blob: %s", strerror(-r));
			return;
		}
		if (r == 0)
			break;
		r = tls_write(&c->tls, data, n, &n);
		if (r == -EAGAIN)
			break;
		if (r < 0) {
			connection_fail(c, r);
			return;
		}
		outbox_sent(&c->out, n);
		done += n;
	}
	connection_watch(c);
}

static int connection_put(struct connection *c, const json_t *message, bool urgent)
{
	int r;

	if (c->state == CONNECTION_DOOMED)
		return -ENOTCONN;
	r = outbox_put(&c->out, message, urgent);
	if (r == -ENOBUFS)
		connection_doom(c, "it does not read: too many messages wait for it");
	connection_watch(c);
	return r;
}

int connection_send(struct connection *c, const json_t *message)
{
	return connection_put(c, message, false);
}

int connection_send_blob(struct connection *c, const uint8_t hash[32], int fd, uint64_t size)
{
	int r;

	if (c->state == CONNECTION_DOOMED)
		return -ENOTCONN;
	r = outbox_put_blob(&c->out, hash, fd, size);
	if (r == -ENOBUFS)
		connection_doom(c, "it does not read: %d blobs wait for it", OUTBOX_BLOBS_MAX);
	connection_watch(c);
	return r;
}

static json_t *own_addresses(const struct connection_manner *m)
{
	json_t *all = json_array();

	for (unsigned i = 0; i < m->n_data_addresses; i++)
		(void)json_array_append_new(all, json_string(m->data_addresses[i]));
	return all;
}

static void say_hello(struct connection *c)
{
	cleanup(json_freep)
		json_t *hello = json_pack("{s:s, s:s, s:i, s:I, s:o}", "type", "hello", "node",
					  c->manner->node, "protocol", PROTOCOL, "incarnation",
					  (json_int_t)c->manner->incarnation, "data_addresses",
					  own_addresses(c->manner));

	if (!hello || connection_put(c, hello, false) < 0)
		connection_doom(c, "it cannot be talked to: out of memory");
}

static void connection_ping(struct connection *c, const char *type, uint64_t n)
{
	cleanup(json_freep)
		json_t *message = json_pack("{s:s, s:I}", "type", type, "n", (json_int_t)n);

	if (!message || connection_put(c, message, true) == -ENOMEM)
		connection_doom(c, "it cannot be talked to: out of memory");
}

/* --- Time -------------------------------------------------------------------------------------- */

/*
 * Drops a blob of a finished sync: it no longer counts against a limit, and the sender may take its
 * time for the rest.
 */
static void drop_unwanted_blob(struct connection *c)
{
	if (c->blob.fd >= 0 && c->manner->events->blob_limit(c, c->blob.hash) == 0)
		blob_drop(&c->blob);
}

static void connection_beat(struct connection *c, uint64_t now)
{
	uint64_t late = now - c->deadline.deadline_ns, heartbeat_ns = c->manner->heartbeat_ns;

	if (late > heartbeat_ns)
		c->heard_ns += late; /* this process slept */
	if (c->heard_ns < now && now - c->heard_ns > SILENCE_BEATS * heartbeat_ns) {
		connection_doom(c, "it did not answer for %g s",
				(double)SILENCE_BEATS * (double)heartbeat_ns / 1e9);
		return;
	}
	drop_unwanted_blob(c);
	if (c->ping == 0)
		c->ping = now; /* pongs to later pings only prove that it lives */
	connection_ping(c, "ping", now);
	if (c->state != CONNECTION_DOOMED)
		timer_start(c->manner->loop, &c->deadline, now + heartbeat_ns);
}

static void connection_on_deadline(struct timer *timer)
{
	struct connection *c = container_of(timer, struct connection, deadline);
	static const char *const what[] = {
		[CONNECTION_CONNECTING] = "to be connected to",
		[CONNECTION_HANDSHAKE] = "for TLS",
		[CONNECTION_HELLO] = "to say hello",
	};

	if (c->state == CONNECTION_UP)
		connection_beat(c, num_now_ns());
	else
		connection_doom(c, "it took more than %u s %s",
				(unsigned)(CONNECTION_OPEN_NS / 1000000000), what[c->state]);
}

void connection_check(struct connection *c, SSL_CTX *context)
{
	if (c->state != CONNECTION_DOOMED && tls_check(&c->tls, context) < 0)
		connection_doom(c, "the certificate of '%s' %.400s", c->name, c->tls.why);
}

static void connection_on_check(struct timer *timer)
{
	struct connection *c = container_of(timer, struct connection, check);

	if (tls_is_over(&c->tls, time(NULL)))
		connection_check(c, SSL_get_SSL_CTX(c->tls.ssl));
	if (c->state != CONNECTION_DOOMED)
		timer_start(c->manner->loop, timer, num_now_ns() + CHECK_NS);
}

/* --- Receiving --------------------------------------------------------------------------------- */

/* -EBADMSG. */
static int take_addresses(struct connection *c, const json_t *m)
{
	json_t *all;

	if (field_array(m, "data_addresses", STRIPES_MAX, &all) < 0)
		return -EBADMSG;
	for (c->n_data = 0; c->n_data < json_array_size(all); c->n_data++) {
		const char *text = json_string_value(json_array_get(all, c->n_data));

		if (!text || !address_from_digits(text, 0, &c->data[c->n_data]))
			return -EBADMSG;
	}
	return 0;
}

static void on_hello(struct connection *c, const json_t *m)
{
	uint64_t protocol, incarnation;
	const char *node;

	if (field_string(m, "node", NODE_MAX, &node) < 0 ||
	    field_number(m, "protocol", INT64_MAX, &protocol) < 0 ||
	    field_number(m, "incarnation", INT64_MAX, &incarnation) < 0 || take_addresses(c, m) < 0) {
		connection_doom(c, "it sent a hello that lacks a field");
		return;
	}
	if (protocol != PROTOCOL) {
		connection_doom(c,
				"it speaks protocol %ju and this node %d: update the older of them",
				(uintmax_t)protocol, PROTOCOL);
		return;
	}
	if (strcmp(node, c->name) != 0) {
		connection_doom(c, "it says to be '%s', and its certificate is of '%s'", node,
				c->name);
		return;
	}
	c->incarnation = incarnation;
	c->state = CONNECTION_UP;
	c->heard_ns = num_now_ns();
	c->manner->events->on_hello(c);
	if (c->state != CONNECTION_DOOMED)
		timer_start(c->manner->loop, &c->deadline, num_now_ns());
}

static void on_bye(struct connection *c, const json_t *m)
{
	const char *why;

	if (field_string(m, "why", BYE_MAX, &why) < 0)
		why = "for no reason";
	connection_doom(c, "it hung up: %s", why);
}

static void on_pong(struct connection *c, const json_t *m)
{
	uint64_t n, now = num_now_ns();

	if (field_number(m, "n", INT64_MAX, &n) < 0) {
		connection_doom(c, "it sent a pong that lacks a field");
	} else if (n == c->ping) {
		c->rtt_us = (now - n) / 1000 + 1;
		c->ping = 0;
	}
}

static void on_message(struct connection *c, const json_t *m)
{
	const char *type;
	uint64_t n;

	if (field_string(m, "type", TYPE_MAX, &type) < 0)
		connection_doom(c, "it sent a message without a type");
	else if (!strcmp(type, "bye"))
		on_bye(c, m);
	else if (c->state == CONNECTION_HELLO && !strcmp(type, "hello"))
		on_hello(c, m);
	else if (c->state == CONNECTION_HELLO || !strcmp(type, "hello"))
		connection_doom(c, "it said '%s' where hello comes first, and once", type);
	else if (!strcmp(type, "pong"))
		on_pong(c, m);
	else if (strcmp(type, "ping") != 0)
		c->manner->events->on_message(c, m);
	else if (field_number(m, "n", INT64_MAX, &n) < 0)
		connection_doom(c, "it sent a ping that lacks a field");
	else
		connection_ping(c, "pong", n);
}

static void on_json(struct connection *c, const struct frame *f)
{
	cleanup(json_freep) json_t *m = NULL;

	if (c->state == CONNECTION_UP || f->size <= HELLO_MAX)
		m = json_loadb((const char *)f->data, f->size, JSON_REJECT_DUPLICATES, NULL);
	if (json_is_object(m))
		on_message(c, m);
	else
		connection_doom(c, "it sent what is no JSON object%s",
				c->state == CONNECTION_UP ? "" : ", or too long for a hello");
}

static void on_part(struct connection *c, const struct frame *f)
{
	uint64_t limit;
	int r = 0;

	if (c->state != CONNECTION_UP) {
		connection_doom(c, "it sent a blob before its hello");
		return;
	}
	if (c->blob.size == 0) {
		limit = c->manner->events->blob_limit(c, f->hash);
		if (c->state == CONNECTION_DOOMED)
			return;
		if (limit > 0 && f->blob_size > limit) {
			connection_doom(c, "it sent a blob that is longer than it said");
			return;
		}
		/* An unexpected blob may have been sent before the peer was notified. */
		r = blob_begin(&c->blob, f, limit > 0);
	}
	if (r == 0)
		r = blob_take(&c->blob, f);
	if (r == 1) {
		struct blob whole = c->blob;

		blob_init(&c->blob);
		if (whole.fd >= 0)
			c->manner->events->on_blob(c, whole.hash, whole.fd, whole.size);
		blob_deinit(&whole);
	} else if (r == -EBADMSG) {
		connection_doom(c, "it sent parts of blobs out of order");
	} else if (r == -EILSEQ) {
		connection_doom(c, "it sent a blob that is not what its hash says");
	} else if (r < 0) {
		connection_doom(c, "it sent a blob that has no room here: %s", strerror(-r));
	}
}

/* Handles the complete frames of the stream. */
static void take_frames(struct connection *c)
{
	const char *why;
	struct frame f;
	int r = 0;

	while (!c->held && c->state != CONNECTION_DOOMED &&
	       (r = frame_decoder_next(&c->in, &f, &why)) == 1) {
		if (f.kind == FRAME_JSON)
			on_json(c, &f);
		else
			on_part(c, &f);
	}
	if (r < 0)
		connection_doom(c, "it sent %s", why);
}

static void read_in(struct connection *c)
{
	size_t done = 0, n;
	void *room;
	int r = 0;

	while (!c->held && c->state != CONNECTION_DOOMED &&
	       (done < ROUND_SIZE || tls_has_more(&c->tls))) {
		r = frame_decoder_room(&c->in, &room, &n);
		if (r < 0) {
			connection_doom(c, "it cannot be talked to: out of memory");
			return;
		}
		r = tls_read(&c->tls, room, n, &n);
		if (r == -EAGAIN)
			return;
		if (r < 0) {
			connection_fail(c, r);
			return;
		}
		frame_decoder_put(&c->in, n);
		c->heard_ns = num_now_ns();
		done += n;
		take_frames(c);
	}
}

static bool connected(struct connection *c)
{
	int error = 0;
	socklen_t size = sizeof(error);

	if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0)
		error = errno;
	if (error)
		connection_doom(c, "it cannot be connected to: %s", strerror(error));
	else
		c->state = CONNECTION_HANDSHAKE;
	return !error;
}

/* True: both ends are authenticated. */
static bool shaken_hands(struct connection *c)
{
	int r = tls_handshake(&c->tls);

	if (r == -EAGAIN) {
		loop_modify(&c->source, c->tls.wants_room ? EPOLLOUT : EPOLLIN);
		return false;
	}
	if (r == 0)
		r = tls_name(&c->tls, c->name);
	if (r < 0) {
		connection_fail(c, r);
		return false;
	}
	c->state = CONNECTION_HELLO;
	timer_start(c->manner->loop, &c->check, num_now_ns() + CHECK_NS);
	c->manner->events->on_name(c);
	if (c->state == CONNECTION_DOOMED)
		return false;
	say_hello(c);
	return c->state != CONNECTION_DOOMED;
}

static void connection_on_event(struct source *source, uint32_t events)
{
	struct connection *c = container_of(source, struct connection, source);

	(void)events;
	if (c->state == CONNECTION_CONNECTING && !connected(c))
		return;
	if (c->state == CONNECTION_HANDSHAKE && !shaken_hands(c))
		return;
	read_in(c);
	write_out(c);
}

void connection_release(struct connection *c)
{
	c->held = false;
	take_frames(c);
	if (c->state != CONNECTION_DOOMED)
		read_in(c); /* epoll does not report bytes that TLS has buffered */
	write_out(c);
}

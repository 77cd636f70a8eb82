#include "server/session.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "server/audit.h"
#include "server/base/log.h"
#include "server/device_query.h"
#include "server/event.h"
#include "server/lease.h"
#include "server/reader_pause.h"
#include "server/request.h"
#include "server/server.h"
#include "server/waiter.h"
#include "server/writer.h"

static void fill_error(struct wire_reply *reply, int error, const char *fmt, va_list args)
{
	reply->error = (struct wire_error){.error = error};
	(void)vsnprintf(reply->error.text, sizeof(reply->error.text), fmt, args); /* cut when long */
}

/* Whatever went over a limit of a user comes through here; who may not do what, its caller records. */
static void record_refusal(const struct channel_peer *peer, const char *why)
{
	audit(&(struct audit){.action = AUDIT_REFUSE, .peer = peer, .result = -EDQUOT, .detail = why});
}

/* For a client that has no session. */
__attribute__((format(printf, 3, 4))) static void turn_away(int fd, int error, const char *fmt, ...)
{
	struct wire_reply reply = {0};
	va_list args;

	va_start(args, fmt);
	fill_error(&reply, error, fmt, args);
	va_end(args);
	/* It is told if it listens; either way it is closed. */
	(void)channel_send(fd, &reply, codec_seal_reply(&reply, WIRE_ERROR, 0), NULL, 0);
}

/*
 * Takes a socket. Closing it closes the descriptors in packets that nobody has received, which may block;
 * after the shutdown no more can come.
 */
static void hang_up(struct server *server, uid_t uid, int fd)
{
	(void)shutdown(fd, SHUT_RDWR);
	if (channel_has_packets(fd))
		client_fds_close(&server->client_fds, uid, fd);
	else
		(void)fd_close(fd);
}

static void doom(struct session *s, const char *why)
{
	if (s->doomed)
		return;
	log_info("session of pid %d uid %u closed: %s", s->peer.pid, s->peer.uid, why);
	s->doomed = true;
	loop_modify(&s->source, 0);
	(void)shutdown(s->source.fd, SHUT_RDWR); /* comes back as EPOLLHUP, at a safe point */
}

static void handle_packet(struct session *s, const struct channel_packet *packet)
{
	struct wire_request request;

	if (codec_decode_request(packet->data, packet->size, packet->n_fds, &request) < 0) {
		doom(s, "it sent something that is not a request");
		return;
	}
	s->serial = request.header.serial;
	s->pending = true;
	s->server->actor = s;
	if (request_handle(s, &request, packet->fds) < 0)
		doom(s, "its request was out of order");
	else if (s->pending && !s->doomed)
		loop_modify(&s->source, 0); /* a hang-up is reported all the same */
	s->server->actor = NULL;
}

/* Not all that a client sent could be received: for lack of our descriptors, which is not its fault. */
static void fail_for_descriptors(struct session *s, const struct channel_packet *packet)
{
	struct wire_request request;
	struct wire_header header;

	memcpy(&header, packet->data, sizeof(header)); /* the packet has room for more than that */
	if (!s->greeted ||
	    codec_decode_request(packet->data, packet->size, header.n_fds, &request) < 0) {
		doom(s, "it sent something that is not a request");
		return;
	}
	s->serial = header.serial;
	session_fail(s, -EMFILE, "weightd is out of descriptors; try again");
}

static void receive_request(struct session *s)
{
	struct channel_packet packet;
	int r;

	if (!client_fds_trust(&s->server->client_fds, s->peer.uid)) {
		doom(s, "descriptors that its user sent cannot be closed");
		return;
	}
	r = channel_receive(s->source.fd, MSG_DONTWAIT, &packet);
	if (r > 0)
		handle_packet(s, &packet);
	while (packet.n_fds > 0)
		client_fds_close(&s->server->client_fds, s->peer.uid, packet.fds[--packet.n_fds]);
	if (r == 0)
		session_close(s);
	else if (r == -EMFILE)
		fail_for_descriptors(s, &packet);
	else if (r < 0 && r != -EAGAIN)
		doom(s, strerror(-r));
}

static void on_io(struct source *source, uint32_t events)
{
	struct session *s = container_of(source, struct session, source);

	if (s->doomed || (s->pending && events & (EPOLLHUP | EPOLLERR)))
		session_close(s);
	else if (!s->pending)
		receive_request(s);
}

static const char *refuse(struct session *s)
{
	if (!client_fds_trust(&s->server->client_fds, s->peer.uid))
		return "descriptors that this user sent cannot be closed";
	if (quota_charge(&s->server->quota, s->peer.uid, QUOTA_SESSIONS, 1, &s->charge) != 0)
		return "this user has too many connections; close some";
	if (loop_add(&s->server->loop, &s->source, s->source.fd, EPOLLIN, on_io) < 0)
		return "weightd is out of memory";
	return NULL;
}

void session_new(struct server *server, int fd)
{
	struct session *s = calloc(1, sizeof(*s));
	const char *why = s ? NULL : "weightd is out of memory";
	uid_t uid = (uid_t)-1;

	if (s && channel_peer(fd, &s->peer) < 0)
		why = "weightd cannot tell who this is";
	if (!why) {
		s->server = server;
		s->source.fd = fd;
		uid = s->peer.uid;
		list_init(&s->leases);
		list_init(&s->writers);
		why = refuse(s);
	}
	if (!why) {
		list_append(&server->sessions, &s->link);
		server->n_sessions++;
		return;
	}
	if (uid != (uid_t)-1)
		record_refusal(&s->peer, why);
	else
		log_warning("a connection was refused: %s", why);
	turn_away(fd, -EDQUOT, "%s", why);
	hang_up(server, uid, fd);
	if (s) {
		quota_refund(&s->charge);
		channel_peer_deinit(&s->peer);
		free(s);
	}
}

void session_close(struct session *s)
{
	struct lease *lease;
	struct writer *writer;

	if (s->waiter)
		waiter_free(s->waiter);
	reader_pause_forget(s);
	events_forget(s);
	device_query_forget(s);
	while ((writer = list_first(&s->writers, struct writer, link)))
		writer_abandon(writer);
	while ((lease = list_first(&s->leases, struct lease, link)))
		lease_free(lease);
	list_remove(&s->link);
	s->server->n_sessions--;
	loop_remove(&s->source);
	hang_up(s->server, s->peer.uid, s->source.fd);
	quota_refund(&s->charge);
	channel_peer_deinit(&s->peer);
	listener_resume(&s->server->listener);
	free(s);
}

static int send_reply(struct session *s, enum wire_op op, struct wire_reply *reply, const int *fds,
		      unsigned n_fds)
{
	size_t size = codec_seal_reply(reply, op, s->serial);
	int r;

	assert(reply->header.n_fds == n_fds);
	s->pending = false;
	if (s->doomed)
		return -ECONNRESET;
	loop_modify(&s->source, EPOLLIN);
	r = channel_send(s->source.fd, reply, size, fds, n_fds);
	if (r < 0 && r != -ETOOMANYREFS && r != -EMFILE)
		doom(s, r == -EAGAIN ? "it does not read its replies" : strerror(-r));
	return r;
}

int session_reply(struct session *s, enum wire_op op, struct wire_reply *reply, const int *fds,
		  unsigned n_fds)
{
	size_t unread;
	int r;

	/* Descriptors in flight count against all clients together: one reply with some, until read. */
	if (n_fds > 0 && channel_unread(s->source.fd, &unread) == 0 && unread > 0) {
		doom(s, "it asks for descriptors and does not read its replies");
		return -EAGAIN;
	}
	r = send_reply(s, op, reply, fds, n_fds);
	if (r == -ETOOMANYREFS || r == -EMFILE)
		session_fail(s, r, "too many descriptors are in flight; try again");
	return r;
}

void session_fail(struct session *s, int error, const char *fmt, ...)
{
	struct wire_reply reply = {0};
	va_list args;

	va_start(args, fmt);
	fill_error(&reply, error, fmt, args);
	va_end(args);
	if (error == -EDQUOT)
		record_refusal(&s->peer, reply.error.text);
	(void)send_reply(s, WIRE_ERROR, &reply, NULL, 0); /* who cannot be told is being closed */
}

void session_fail_quota(struct session *s, int r, const char *what)
{
	if (r == QUOTA_EXCEEDED)
		session_fail(s, -EDQUOT, "uid %u has too many %s", s->peer.uid, what);
	else
		session_fail(s, r, "weightd is out of memory");
}

#include "server/requests/connection.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "ipc/base/fd.h"
#include "ipc/channel.h"
#include "ipc/codec.h"
#include "server/base/log.h"
#include "server/buffers/lease.h"
#include "server/buffers/paused_reader.h"
#include "server/buffers/waiter.h"
#include "server/buffers/writer.h"
#include "server/groups/group_caller.h"
#include "server/groups/group_member.h"
#include "server/requests/client_fds.h"
#include "server/requests/device_query.h"
#include "server/requests/event_watch.h"
#include "server/requests/request.h"
#include "server/state/audit.h"
#include "server/state/server.h"
#include "server/state/session.h"

/*
 * Refuses a client that has no session. The error is sent if the client reads it; the caller closes
 * either way.
 */
static void turn_away(int fd, int error, const char *why)
{
	struct wire_reply reply = {0};

	reply.error = (struct wire_error){.error = error};
	(void)snprintf(reply.error.text, sizeof(reply.error.text), "%s", why);
	(void)channel_send(fd, &reply, codec_seal_reply(&reply, WIRE_ERROR, 0), NULL, 0);
}

/*
 * Takes a socket. Closing it closes the descriptors in unread packets, which may block; after the
 * shutdown there are no new ones.
 */
static void hang_up(struct server *server, uid_t uid, int fd)
{
	(void)shutdown(fd, SHUT_RDWR);
	if (channel_has_packets(fd))
		client_fds_close(server->client_fds, uid, fd);
	else
		(void)fd_close(fd);
}

static void handle_packet(struct session *s, const struct channel_packet *packet)
{
	struct wire_request request;

	if (codec_decode_request(packet->data, packet->size, packet->n_fds, &request) < 0) {
		session_doom(s, "it sent something that is not a request");
		return;
	}
	s->serial = request.header.serial;
	s->pending = true;
	s->server->actor = s;
	if (request_handle(s, &request, packet->fds) < 0)
		session_doom(s, "its request was out of order");
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
		session_doom(s, "it sent something that is not a request");
		return;
	}
	s->serial = header.serial;
	session_fail(s, -EMFILE, "weightd is out of descriptors; try again");
}

static void receive_request(struct session *s)
{
	struct channel_packet packet;
	int r;

	if (!client_fds_are_trusted(s->server->client_fds, s->peer.uid)) {
		session_doom(s, "descriptors that its user sent cannot be closed");
		return;
	}
	r = channel_receive(s->source.fd, MSG_DONTWAIT, &packet);
	if (r > 0)
		handle_packet(s, &packet);
	while (packet.n_fds > 0)
		client_fds_close(s->server->client_fds, s->peer.uid, packet.fds[--packet.n_fds]);
	if (r == 0)
		connection_close(s);
	else if (r == -EMFILE)
		fail_for_descriptors(s, &packet);
	else if (r < 0 && r != -EAGAIN)
		session_doom(s, strerror(-r));
}

static void connection_on_io(struct source *source, uint32_t events)
{
	struct session *s = container_of(source, struct session, source);

	if (s->doomed || (s->pending && events & (EPOLLHUP | EPOLLERR)))
		connection_close(s);
	else if (!s->pending)
		receive_request(s);
}

static const char *connection_refuse(struct session *s)
{
	if (!client_fds_are_trusted(s->server->client_fds, s->peer.uid))
		return "descriptors that this user sent cannot be closed";
	if (quota_charge(&s->server->quota, s->peer.uid, QUOTA_SESSIONS, 1, &s->charge) != 0)
		return "this user has too many connections; close some";
	if (loop_add(&s->server->loop, &s->source, s->source.fd, EPOLLIN, connection_on_io) < 0)
		return "weightd is out of memory";
	return NULL;
}

void connection_new(struct server *server, int fd, void (*closed)(void *context), void *context)
{
	struct session *s = calloc(1, sizeof(*s));
	const char *why = s ? NULL : "weightd is out of memory";
	uid_t uid = (uid_t)-1;

	if (s && channel_peer(fd, &s->peer) < 0)
		why = "weightd cannot determine the peer's user";
	if (!why) {
		s->server = server;
		s->closed = closed;
		s->closed_context = context;
		s->source.fd = fd;
		uid = s->peer.uid;
		list_init(&s->leases);
		list_init(&s->writers);
		list_init(&s->members);
		why = connection_refuse(s);
	}
	if (!why) {
		list_append(&server->sessions, &s->link);
		server->n_sessions++;
		return;
	}
	if (uid != (uid_t)-1)
		audit(&(struct audit){
			.action = AUDIT_REFUSE, .peer = &s->peer, .result = -EDQUOT, .detail = why});
	else
		log_warning("a connection was refused: %s", why);
	turn_away(fd, -EDQUOT, why);
	hang_up(server, uid, fd);
	if (s) {
		quota_refund(&s->charge);
		channel_peer_deinit(&s->peer);
		free(s);
	}
}

void connection_close(struct session *s)
{
	void (*closed)(void *) = s->closed;
	void *context = s->closed_context;
	struct group_member *member;
	struct lease *lease;
	struct writer *writer;

	if (s->waiter)
		waiter_free(s->waiter);
	paused_reader_forget(s);
	event_watch_forget(s);
	device_query_forget(s);
	group_caller_forget(s);
	while ((member = list_first(&s->members, struct group_member, session_link)))
		group_member_lose(member);
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
	free(s);
	closed(context);
}

#include "server/requests/connection.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "ipc/base/fd.h"
#include "ipc/base/num.h"
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
#include "server/state/access.h"
#include "server/state/audit.h"
#include "server/state/cost.h"
#include "server/state/in_work.h"
#include "server/state/server.h"
#include "server/state/session.h"

/* Part of a turn that one session that ends may take. */
#define FREE_NS 50000u

/* Clients that are refused later. */
#define REFUSALS_MAX 4096u

#define EVENTS_INPUT (EPOLLIN | EPOLLET)
#define EVENTS_MUTED EPOLLET /* only EPOLLHUP and EPOLLERR, which always come */

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
	if (channel_may_hold_fds(fd))
		client_fds_hang_up(server->client_fds, uid, fd);
	else
		(void)fd_close(fd);
}

/*
 * A parked session goes on for each place that becomes free. When it does not take it, the next one may: else nothing would
 * wake that if all places were free.
 */
static void unpark_next(const struct session *s)
{
	if (!list_empty(&s->cost->turn.parked) && in_work_has_room(s) &&
	    client_fds_have_room(s->server->client_fds, s->peer.uid))
		turns_unpark_one(&s->cost->turn);
}

/* The session owns nothing any more. */
static void connection_free(struct session *s)
{
	void (*closed)(void *) = s->closed;
	void *context = s->closed_context;
	struct server *server = s->server;

	turns_remove(s);
	turns_leave(s);
	list_remove(&s->link);
	server->n_sessions--;
	hang_up(server, s->peer.uid, s->source.fd);
	quota_refund(&s->charge);
	s->cost = cost_unref(s->cost);
	channel_peer_deinit(&s->peer);
	free(s);
	server_count_object(server, -1);
	closed(context);
}

/* Frees one of the things that the session owns. False: there is nothing left. */
static bool free_one(struct session *s)
{
	struct group_member *member = list_first(&s->members, struct group_member, session_link);
	struct writer *writer = list_first(&s->writers, struct writer, link);
	struct lease *lease = list_first(&s->leases, struct lease, link);

	if (member)
		group_member_lose(member);
	else if (writer)
		writer_abandon(writer);
	else if (lease)
		lease_free(lease);
	else
		return false;
	return true;
}

/* Ends what the session waits for. Its leases, writers and places are freed afterwards: that may take long. */
static void connection_shut(struct session *s)
{
	s->doomed = true; /* so that requests in work are not answered */
	s->closing = true;
	loop_remove(&s->source);
	if (s->waiter)
		waiter_free(s->waiter);
	paused_reader_forget(s);
	event_watch_forget(s);
	device_query_forget(s);
	group_caller_forget(s);
	if (!s->server->stopping)
		unpark_next(s);
}

static void connection_free_some(struct session *s)
{
	uint64_t end_ns = num_now_ns() + FREE_NS;

	while (free_one(s)) {
		if (num_now_ns() < end_ns)
			continue;
		turns_add(s);
		return;
	}
	connection_free(s);
}

static void connection_end(struct session *s)
{
	connection_shut(s);
	connection_free_some(s);
}

static void handle_packet(struct session *s, const struct channel_packet *packet)
{
	uint64_t began_ns = num_now_ns();
	struct wire_request request;

	if (codec_decode_request(packet->data, packet->size, packet->n_fds, &request) < 0) {
		session_doom(s, "it sent something that is not a request");
		return;
	}
	s->serial = request.header.serial;
	s->pending = true;
	s->server->actor = s;
	s->cost->n_requests++;
	if (request_handle(s, &request, packet->fds) < 0)
		session_doom(s, "its request was out of order");
	else if (!s->pending)
		cost_answered(s->cost, num_now_ns() - began_ns);
	else if (s->hung_up)
		turns_add(s); /* no edge will follow */
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

/* The next packet is an event, also one that came just now. */
static void receive_nothing(struct session *s)
{
	s->readable = false;
	if (s->source.loop)
		loop_modify(&s->source, EVENTS_INPUT);
}

/* False: the session has ended. */
static bool receive_request(struct session *s)
{
	struct channel_packet packet;
	int r;

	if (!client_fds_are_trusted(s->server->client_fds, s->peer.uid)) {
		session_doom(s, "descriptors that its user sent cannot be closed");
		return true;
	}
	if (client_fds_hold_up(s->server->client_fds, s))
		return true;
	if (in_work_must_wait(s)) {
		if (s->hung_up) {
			connection_end(s);
			return false;
		}
		turns_park(s);
		return true;
	}
	r = channel_receive(s->source.fd, MSG_DONTWAIT, &packet);
	if (r > 0)
		handle_packet(s, &packet);
	client_fds_close(s->server->client_fds, s->peer.uid, packet.fds, packet.n_fds);
	if (r == 0)
		connection_end(s);
	else if (r == -EAGAIN)
		receive_nothing(s);
	else if (r == -EMFILE)
		fail_for_descriptors(s, &packet);
	else if (r < 0)
		session_doom(s, strerror(-r));
	if (r != 0)
		unpark_next(s);
	return r != 0;
}

/* Edges: `readable` stays until a read finds nothing. Packets that follow until then do not wake the loop. */
static void connection_on_io(struct source *source, uint32_t events)
{
	struct session *s = container_of(source, struct session, source);

	if (s->readable)
		loop_modify(&s->source, EVENTS_MUTED);
	s->readable = true;
	s->hung_up |= (events & (EPOLLHUP | EPOLLERR)) != 0;
	if (s->hung_up)
		turns_remove(s); /* it may be parked */
	if (!s->pending || s->hung_up)
		turns_add(s);
}

/* The first request is usually there already: it is answered before the loop watches the socket. */
static void receive_first(struct session *s)
{
	if (receive_request(s) && !s->doomed &&
	    loop_add(&s->server->loop, &s->source, s->source.fd, EVENTS_INPUT, connection_on_io) < 0)
		session_doom(s, "weightd is out of memory");
}

static void answer_due(struct session *s)
{
	void (*due)(struct session *) = s->due;

	s->due = NULL;
	due(s);
	if (s->readable && !s->pending)
		turns_add(s);
}

static void connection_discard(struct session *s)
{
	if (!s)
		return;
	quota_refund(&s->charge);
	s->cost = cost_unref(s->cost);
	channel_peer_deinit(&s->peer);
	free(s);
}

/*
 * A refused client waits for its user's turn, too: else a user that rests would have its clients connect again and again
 * meanwhile. False: there are too many such clients.
 */
static bool connection_put_off(struct session *s, int fd, const char *why)
{
	struct server *server = s->server;

	if (server->n_refusals >= REFUSALS_MAX ||
	    server->n_sessions + server->n_refusals >= server->quota.wholes[QUOTA_SESSIONS] / 4 * 3)
		return false;
	server->n_refusals++;
	list_append(&server->refusals, &s->link);
	s->source.fd = fd;
	s->refusal = why;
	turns_add(s);
	return true;
}

static void connection_turn_away(struct session *s)
{
	struct server *server = s->server;

	turn_away(s->source.fd, -EDQUOT, s->refusal);
	hang_up(server, s->peer.uid, s->source.fd);
	turns_remove(s);
	list_remove(&s->link);
	server->n_refusals--;
	connection_discard(s);
}

void connection_serve(struct session *s)
{
	if (s->refusal)
		connection_turn_away(s);
	else if (s->closing)
		connection_free_some(s);
	else if (s->doomed || (s->pending && s->hung_up))
		connection_end(s);
	else if (s->due)
		answer_due(s);
	else if (!s->source.loop)
		receive_first(s);
	else if (!s->pending)
		(void)receive_request(s);
}

static const char *connection_refuse(struct session *s)
{
	int r;

	if (!client_fds_are_trusted(s->server->client_fds, s->peer.uid))
		return "descriptors that this user sent cannot be closed";
	r = quota_charge_shared(&s->server->quota, s->peer.uid, access_is_admin(&s->peer),
				QUOTA_SESSIONS, 1, &s->charge);
	if (r == QUOTA_RESERVED)
		return "the connections that are left are for users with fewer than this one; close "
		       "some";
	if (r != 0)
		return "this user has too many connections; close some";
	return NULL;
}

static void connection_admit(struct session *s)
{
	struct server *server = s->server;

	list_append(&server->sessions, &s->link);
	server->n_sessions++;
	server_count_object(server, 1);
	turns_join(s);
	turns_add(s);
}

/* `s` is NULL without memory, and has no cost while its user is unknown. True: it is kept for its user's turn. */
static bool connection_deny(struct server *server, struct session *s, int fd, const char *why)
{
	uid_t uid = (uid_t)-1;

	if (s && s->cost) {
		uid = s->peer.uid;
		s->cost->n_refused++;
		audit(&(struct audit){
			.action = AUDIT_REFUSE, .peer = &s->peer, .result = -EDQUOT, .detail = why});
	} else {
		log_warning("a connection was refused: %s", why);
	}
	server_count_refusal(server, -EDQUOT);
	if (s && s->cost && connection_put_off(s, fd, why))
		return true;
	turn_away(fd, -EDQUOT, why);
	hang_up(server, uid, fd);
	return false;
}

uint64_t connection_new(struct server *server, int fd, uint64_t began_ns,
			void (*closed)(void *context), void *context)
{
	struct session *s = calloc(1, sizeof(*s));
	const char *why = s ? NULL : "weightd is out of memory";
	bool is_over = false;
	uint64_t now;

	if (s && channel_peer(fd, &s->peer) < 0)
		why = "weightd cannot determine the peer's user";
	if (!why) {
		s->server = server;
		s->closed = closed;
		s->closed_context = context;
		s->source.fd = fd;
		list_init(&s->leases);
		list_init(&s->writers);
		list_init(&s->members);
		list_init(&s->ready_link);
		s->cost = cost_ref(server, s->peer.uid);
		why = connection_refuse(s);
	}
	if (why)
		is_over = !connection_deny(server, s, fd, why);
	else
		connection_admit(s);
	now = num_now_ns();
	if (s && s->cost)
		turns_charge(s->cost, began_ns, now);
	if (is_over)
		connection_discard(s);
	return now;
}

void connection_close(struct session *s)
{
	if (s->refusal) {
		connection_turn_away(s);
		return;
	}
	if (!s->closing)
		connection_shut(s);
	while (free_one(s))
		;
	connection_free(s);
}

#include "server/state/session.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ipc/base/release.h"
#include "server/base/flood.h"
#include "server/base/log.h"
#include "server/state/audit.h"
#include "server/state/cost.h"
#include "server/state/server.h"

static void fill_error(struct wire_reply *reply, int error, const char *fmt, va_list args)
{
	reply->error = (struct wire_error){.error = error};
	(void)vsnprintf(reply->error.text, sizeof(reply->error.text), fmt, args); /* cut when long */
}

/* Audits a charge over a user's limit. A caller that refuses for lack of permission audits itself. */
static void record_refusal(const struct channel_peer *peer, const char *why)
{
	audit(&(struct audit){.action = AUDIT_REFUSE, .peer = peer, .result = -EDQUOT, .detail = why});
}

void session_doom(struct session *s, const char *why)
{
	if (s->doomed)
		return;
	if (flood_admits(&s->cost->closed, "sessions that were closed"))
		log_info("session of pid %d uid %u closed: %s", s->peer.pid, s->peer.uid, why);
	s->doomed = true;
	(void)shutdown(s->source.fd, SHUT_RDWR);
	turns_add(s);
}

void session_wake(struct session *s, void (*due)(struct session *s))
{
	s->due = due;
	turns_add(s);
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
	if (s->readable)
		turns_add(s);
	r = channel_send(s->source.fd, reply, size, fds, n_fds);
	if (r < 0 && r != -ETOOMANYREFS && r != -EMFILE)
		session_doom(s, r == -EAGAIN ? "it does not read its replies" : strerror(-r));
	return r;
}

int session_reply(struct session *s, enum wire_op op, struct wire_reply *reply, const int *fds,
		  unsigned n_fds)
{
	size_t unread;
	int r;

	/* Descriptors in flight count against all clients together: one reply with some, until read. */
	if (n_fds > 0 && channel_unread(s->source.fd, &unread) == 0 && unread > 0) {
		session_doom(s, "it asks for descriptors and does not read its replies");
		return -EAGAIN;
	}
	r = send_reply(s, op, reply, fds, n_fds);
	if (r == -ETOOMANYREFS || r == -EMFILE)
		session_fail(s, r, "too many descriptors are in flight; try again");
	return r;
}

void session_fill_hello(const struct session *s, struct wire_hello_reply *ret)
{
	ret->version = WIRE_VERSION;
	ret->pid = (uint32_t)getpid();
	ret->instance = s->server->instance;
	ret->features = WIRE_FEATURE_LAYOUT | WIRE_FEATURE_IMAGE | WIRE_FEATURE_JOBS |
			WIRE_FEATURE_JOB_VIEW | WIRE_FEATURE_OWNER | WIRE_FEATURE_COSTS |
			WIRE_FEATURE_HOLDERS | WIRE_FEATURE_HEALTH | WIRE_FEATURE_PROVIDE |
			WIRE_FEATURE_SHARE | WIRE_FEATURE_NUMA;
	if (store_works(&s->server->store))
		ret->features |= WIRE_FEATURE_SURVIVES;
	(void)CODEC_PUT_STRING(ret->release, RELEASE);
}

void session_fail(struct session *s, int error, const char *fmt, ...)
{
	struct wire_reply reply = {0};
	va_list args;

	va_start(args, fmt);
	fill_error(&reply, error, fmt, args);
	va_end(args);
	server_count_refusal(s->server, error);
	if (error == -EDQUOT) {
		s->cost->n_refused++;
		record_refusal(&s->peer, reply.error.text);
	}
	if (s->greets)
		session_fill_hello(s, &reply.hello_error.hello);
	/* On failure the connection is being closed. */
	(void)send_reply(s, s->greets ? WIRE_HELLO_ERROR : WIRE_ERROR, &reply, NULL, 0);
}

void session_fail_quota(struct session *s, int r, const char *what)
{
	if (r == QUOTA_EXCEEDED)
		session_fail(s, -EDQUOT, "uid %u has too many %s", s->peer.uid, what);
	else if (r == QUOTA_RESERVED)
		session_fail(s, -EDQUOT,
			     "uid %u gets none of what is left, which is for administrators and for "
			     "users with fewer %s",
			     s->peer.uid, what);
	else
		session_fail(s, r, "weightd is out of memory");
}

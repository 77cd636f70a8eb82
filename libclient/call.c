/*
 * A connection asks one thing at a time and waits for the answer. Where the answer is lost with the server,
 * and the server comes back, the question is put again; whoever asks what cannot be asked twice says so.
 */
#include "libclient/call.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "ipc/channel.h"
#include "libclient/leave.h"
#include "libclient/restart.h"

#define GRACE_MS 5000 /* beyond the time that the server was given to answer */

/*
 * Looks for a while before it sleeps: most answers come within some microseconds, and waking a processor
 * that has gone idle takes as long as the rest of an attach. Yields, so that a server on this very
 * processor can answer.
 */
static bool spin_for_reply(struct pollfd *p)
{
	uint64_t end = num_now_ns() + CALL_SPIN_NS;

	do {
		if (poll(p, 1, 0) > 0)
			return true;
		(void)sched_yield();
	} while (num_now_ns() < end);
	return false;
}

/* How long to poll: to the deadline, but no longer than to the next tick. -1: for ever. */
static int poll_ms(uint64_t now_ns, uint64_t deadline_ns, bool ticking)
{
	uint64_t ms = UINT64_MAX;

	if (deadline_ns)
		ms = now_ns < deadline_ns ? (deadline_ns - now_ns + 999999) / 1000000 : 0;
	if (ticking && ms > CALL_TICK_MS)
		ms = CALL_TICK_MS;
	return ms > INT_MAX ? -1 : (int)ms;
}

/* Of the operations that wait for something to happen. */
static int64_t *field_of_patience(struct client_call *call)
{
	switch (call->op) {
	case WIRE_WAIT:
		return &call->request.wait.timeout_ms;
	case WIRE_PAUSE:
		return &call->request.pause.timeout_ms;
	case WIRE_EVENTS:
		return &call->request.events.timeout_ms;
	default:
		return NULL;
	}
}

/* How long to wait for the answer to what was asked. */
static int64_t answer_ms(struct client_call *call)
{
	const int64_t *patience_ms = field_of_patience(call);

	if (patience_ms)
		return *patience_ms < 0 ? -1 : *patience_ms + GRACE_MS;
	return call->timeout_ms ? call->timeout_ms : CALL_TIMEOUT_MS;
}

/* 0 when there is something to read. */
static int wait_for_reply(int fd, struct client_call *call)
{
	int64_t timeout_ms = answer_ms(call);
	uint64_t deadline = timeout_ms < 0 ? 0 : num_now_ns() + (uint64_t)timeout_ms * 1000000;
	struct pollfd p = {.fd = fd, .events = POLLIN};

	if (spin_for_reply(&p))
		return 0;
	for (;;) {
		int n = poll(&p, 1, poll_ms(num_now_ns(), deadline, call->tick != NULL));

		if (n > 0)
			return 0;
		if (n < 0 && errno != EINTR)
			return -errno;
		if (call->tick && call->tick(call->userdata) < 0)
			return -ECANCELED;
		if (deadline && num_now_ns() >= deadline)
			return -ETIMEDOUT;
	}
}

static int lost(struct weightd *w, int r)
{
	w->fd = fd_close(w->fd);
	if (r == -ETIMEDOUT)
		return sentence_set(&w->sentence, r, "weightd at %s does not answer", w->path);
	if (r == -ECANCELED)
		return sentence_set(&w->sentence, r, "cancelled");
	if (r == -EBADMSG || r == -EMSGSIZE)
		return sentence_set(
			&w->sentence, -EBADMSG,
			"weightd at %s sent something that is not a reply; use the same release "
			"of both",
			w->path);
	return sentence_set(&w->sentence, -ENOTCONN,
			    "the connection to weightd at %s is lost (%s); connect again", w->path,
			    r ? strerror(-r) : "it was closed");
}

/* The server believes we have what this reply carried, and its descriptors did not fit: give it back. */
static int give_back(struct weightd *w, enum wire_op op, const struct channel_packet *packet)
{
	struct wire_reply reply;
	struct wire_header header;

	memcpy(&header, packet->data, sizeof(header)); /* the packet has room for more than that */
	if (codec_decode_reply(packet->data, packet->size, header.n_fds, &reply) == 0) {
		if (op == WIRE_ATTACH)
			client_end(w, WIRE_DETACH, reply.attach.lease);
		if (op == WIRE_CREATE)
			client_end(w, WIRE_ABORT, reply.create.writer);
	}
	return sentence_set(&w->sentence, -EMFILE,
			    "this process is out of descriptors; close some, or raise ulimit -n");
}

static int receive_reply(struct weightd *w, struct client_call *call)
{
	struct channel_packet packet;
	int r = channel_receive(w->fd, MSG_DONTWAIT, &packet);

	if (r <= 0)
		channel_packet_deinit(&packet);
	if (r == -EMFILE)
		return give_back(w, call->op, &packet);
	if (r <= 0)
		return lost(w, r);
	r = codec_decode_reply(packet.data, packet.size, packet.n_fds, &call->reply);
	if (r == 0 && call->reply.header.op != ((unsigned)call->op | WIRE_REPLY) &&
	    call->reply.header.op != (WIRE_ERROR | WIRE_REPLY))
		r = -EBADMSG;
	if (r < 0) {
		channel_packet_deinit(&packet);
		return lost(w, r);
	}
	if (call->reply.header.op == (WIRE_ERROR | WIRE_REPLY))
		return sentence_set(&w->sentence, call->reply.error.error, "%s",
				    call->reply.error.text);
	for (unsigned i = 0; i < packet.n_fds; i++)
		call->reply_fds[i] = packet.fds[i];
	return 0;
}

static void forget_fds(struct client_call *call)
{
	for (int i = 0; i < WIRE_FDS_MAX; i++)
		call->reply_fds[i] = -1;
}

int client_ask(struct weightd *w, struct client_call *call)
{
	size_t size;
	int r;

	forget_fds(call);
	size = codec_seal_request(&call->request, call->op, ++w->serial);
	r = channel_send(w->fd, &call->request, size, call->fds, call->request.header.n_fds);
	if (r == 0)
		call->sent = true;
	/* A server that turned us away has said why before it closed: that is read below. */
	else if (r != -EPIPE && r != -ECONNRESET)
		return lost(w, r);
	r = wait_for_reply(w->fd, call);
	if (r < 0)
		return lost(w, r);
	return receive_reply(w, call);
}

int client_check_owner(struct weightd *w)
{
	if (!w->owner || w->owner == getpid())
		return 0;
	return sentence_set(&w->sentence, -ECHILD,
			    "this connection belongs to the parent process; connect again");
}

int client_check_usable(struct weightd *w)
{
	int r = client_check_owner(w);

	if (r < 0)
		return r;
	if (w->fd < 0 && !restart_is_awaited(w))
		return sentence_set(&w->sentence, -ENOTCONN,
				    "not connected to weightd; connect first");
	return 0;
}

static void start_patience(const struct weightd *w, struct client_call *call,
			   struct restart_patience *ret)
{
	*ret = (struct restart_patience){
		.has_lost = w->fd < 0,
		.until_ns = restart_until(w),
		.deadline_ns = call->deadline_ns ? call->deadline_ns : UINT64_MAX,
		.tick = call->tick,
		.userdata = call->userdata,
	};
	if (field_of_patience(call) && call->timeout_ms >= 0)
		ret->deadline_ns = num_now_ns() + (uint64_t)call->timeout_ms * 1000000;
}

static void put_time_left(struct client_call *call, uint64_t deadline_ns)
{
	int64_t *field = field_of_patience(call);
	uint64_t now = num_now_ns();

	if (field && deadline_ns == UINT64_MAX)
		*field = -1;
	else if (field)
		*field = now < deadline_ns ? (int64_t)((deadline_ns - now + 999999) / 1000000) : 0;
}

/* 0: connected anew, and the request is to be sent; 1: it is done. */
static int come_back(struct weightd *w, struct client_call *call,
		     const struct restart_patience *patience)
{
	int r = restart_wait(w, patience);

	return r == 0 && call->again ? call->again(w, call) : r;
}

int client_call(struct weightd *w, struct client_call *call)
{
	struct restart_patience patience;
	uint64_t asked = 0; /* the instance of the server that took the request */
	unsigned n_closed = 0;
	int r = client_check_usable(w);

	forget_fds(call);
	if (r < 0)
		return r;
	(void)leave_look(w, false);
	start_patience(w, call, &patience);
	for (;;) {
		if (w->fd < 0) {
			r = come_back(w, call, &patience);
			if (r != 0)
				return r < 0 ? r : 0;
			/* A server that has not died and closes each time does not take this request. */
			if (call->sent && asked == w->instance && ++n_closed > 1)
				return lost(w, 0);
		}
		put_time_left(call, patience.deadline_ns);
		asked = w->instance;
		r = client_ask(w, call);
		if (r != -ENOTCONN || w->fd >= 0 || !restart_is_awaited(w))
			return r;
		if (!patience.has_lost)
			patience.until_ns = restart_until(w); /* it began now */
		patience.has_lost = true;
	}
}

void client_call_deinit(struct client_call *call)
{
	for (int i = 0; i < WIRE_FDS_MAX; i++)
		call->reply_fds[i] = fd_close(call->reply_fds[i]);
}

void client_end(struct weightd *w, enum wire_op op, uint64_t id)
{
	struct client_call call = {.op = op};
	struct sentence saved = w->sentence;

	if (id == 0 || w->fd < 0 || w->owner != getpid())
		return; /* it ended with its connection, or is the parent's */
	call.request.detach.id = id;
	(void)client_ask(w, &call);
	client_call_deinit(&call);
	w->sentence = saved; /* of the failure that led here, perhaps */
}

int client_not_again(struct weightd *w, struct client_call *call)
{
	if (!call->sent)
		return 0;
	return sentence_set(&w->sentence, -ECONNABORTED,
			    "the connection to weightd was lost while it was asked to change '%s', and "
			    "whether it did is unknown: look (weightctl ls) and ask again",
			    (const char *)call->subject);
}

/*
 * A connection carries one request at a time and waits for its reply. A missing or malformed reply closes the
 * connection, because the next packet could belong to another request.
 */
#include "libclient/connection/ask.h"

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
#include "libclient/connection/release.h"

#define GRACE_MS 5000 /* beyond the time that the server was given to answer */

/*
 * Receives again and again for a while before it sleeps: most replies arrive within some microseconds, and waking an idle
 * processor takes as long as the rest of an attach. Yields, so that a server on this very processor can answer.
 */
static int spin_for_reply(int fd, struct channel_packet *ret)
{
	uint64_t end = num_now_ns() + CALL_SPIN_NS;
	int r;

	while ((r = channel_receive(fd, MSG_DONTWAIT, ret)) == -EAGAIN && num_now_ns() < end)
		(void)sched_yield();
	return r;
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

/* The field with the server's time limit, in operations that wait for an event. */
int64_t *client_call_patience_ms(struct client_call *call)
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
	const int64_t *patience_ms = client_call_patience_ms(call);

	if (patience_ms)
		return *patience_ms < 0 ? -1 : *patience_ms + GRACE_MS;
	return call->timeout_ms ? call->timeout_ms : CALL_TIMEOUT_MS;
}

/* Sleeps. 0 when there is something to read. */
static int wait_for_reply(int fd, struct client_call *call)
{
	int64_t timeout_ms = answer_ms(call);
	uint64_t deadline = timeout_ms < 0 ? 0 : num_now_ns() + (uint64_t)timeout_ms * 1000000;
	struct pollfd p = {.fd = fd, .events = POLLIN};

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

int client_lost(struct weightd *w, int r)
{
	w->fd = fd_close(w->fd);
	if (r == -ETIMEDOUT)
		return sentence_set(&w->sentence, r, "weightd at %s does not answer", w->path);
	if (r == -ECANCELED)
		return sentence_set(&w->sentence, r, "cancelled");
	if (r == -EBADMSG || r == -EMSGSIZE)
		return release_mismatch(w, -EBADMSG, "sent an invalid reply");
	return sentence_set(&w->sentence, -ENOTCONN,
			    "the connection to weightd at %s is lost (%s); connect again", w->path,
			    r ? strerror(-r) : "it was closed");
}

/* The server believes we have what this reply carried, and its descriptors did not fit: give it back. */
static int give_back(struct weightd *w, struct client_call *call,
		     const struct channel_packet *packet)
{
	enum wire_op op = call->op;
	struct wire_header header;

	memcpy(&header, packet->data, sizeof(header)); /* the packet has room for more than that */
	if (codec_decode_reply(packet->data, packet->size, header.n_fds, &call->reply) == 0) {
		if (op == WIRE_ATTACH || op == WIRE_HELLO_ATTACH)
			client_end(w, WIRE_DETACH, call->reply.attach.lease);
		if (op == WIRE_CREATE || op == WIRE_CREATE_IMAGE || op == WIRE_CREATE_OWNED ||
		    op == WIRE_CREATE_IMAGE_OWNED)
			client_end(w, WIRE_ABORT, call->reply.create.writer);
	}
	return sentence_set(&w->sentence, -EMFILE,
			    "this process is out of descriptors; close some, or raise ulimit -n");
}

static bool is_error(const struct client_call *call)
{
	unsigned op = call->reply.header.op;

	return op == (WIRE_ERROR | WIRE_REPLY) ||
	       (op == (WIRE_HELLO_ERROR | WIRE_REPLY) && call->op == WIRE_HELLO_ATTACH);
}

/* Like channel_receive(), and -ETIMEDOUT, -ECANCELED. */
static int receive_packet(int fd, struct client_call *call, struct channel_packet *ret)
{
	int r = spin_for_reply(fd, ret);

	if (r != -EAGAIN)
		return r;
	r = wait_for_reply(fd, call);
	return r < 0 ? r : channel_receive(fd, MSG_DONTWAIT, ret);
}

int client_ask_receive(struct weightd *w, struct client_call *call)
{
	struct channel_packet packet;
	int r = receive_packet(w->fd, call, &packet);

	if (r <= 0)
		channel_packet_deinit(&packet);
	if (r == -EMFILE)
		return give_back(w, call, &packet);
	if (r <= 0)
		return client_lost(w, r);
	r = codec_decode_reply(packet.data, packet.size, packet.n_fds, &call->reply);
	if (r == 0 && call->reply.header.op != ((unsigned)call->op | WIRE_REPLY) && !is_error(call))
		r = -EBADMSG;
	if (r < 0) {
		channel_packet_deinit(&packet);
		return client_lost(w, r);
	}
	if (is_error(call))
		return sentence_set(&w->sentence, call->reply.error.error, "%s",
				    call->reply.error.text);
	for (unsigned i = 0; i < packet.n_fds; i++)
		call->reply_fds[i] = packet.fds[i];
	return 0;
}

void client_call_init_fds(struct client_call *call)
{
	for (int i = 0; i < WIRE_FDS_MAX; i++)
		call->reply_fds[i] = -1;
}

int client_ask_send(struct weightd *w, struct client_call *call)
{
	size_t size;
	int r;

	client_call_init_fds(call);
	size = codec_seal_request(&call->request, call->op, ++w->serial);
	r = channel_send(w->fd, &call->request, size, call->fds, call->request.header.n_fds);
	if (r == 0)
		call->sent = true;
	/* A server that rejected this client sent its reason before it closed: that is read below. */
	else if (r != -EPIPE && r != -ECONNRESET)
		return client_lost(w, r);
	return 0;
}

int client_ask(struct weightd *w, struct client_call *call)
{
	int r = client_ask_send(w, call);

	return r < 0 ? r : client_ask_receive(w, call);
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
	w->sentence = saved; /* the caller may be reporting a failure with it */
}

/*
 * A connection asks one thing at a time and waits for the answer. It belongs to the process that made
 * it: the server sees one peer, and two processes reading one socket would take each other's replies.
 */
#include "libclient/client.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "ipc/channel.h"
#include "weightd.h"

#define STRING(x) #x
#define RELEASE(major, minor, patch) STRING(major) "." STRING(minor) "." STRING(patch)

#define CONNECT_TIMEOUT_MS 5000

const char *weightd_release(void)
{
	return RELEASE(WEIGHTD_VERSION_MAJOR, WEIGHTD_VERSION_MINOR, WEIGHTD_VERSION_PATCH);
}

int weightd_new(struct weightd **ret)
{
	struct weightd *w = calloc(1, sizeof(*w));

	if (!w)
		return -ENOMEM;
	w->n_refs = 1;
	w->fd = -1;
	*ret = w;
	return 0;
}

struct weightd *client_ref(struct weightd *w)
{
	w->n_refs++;
	return w;
}

void client_unref(struct weightd *w)
{
	if (!w || --w->n_refs > 0)
		return;
	(void)fd_close(w->fd);
	free(w->path);
	free(w);
}

void weightd_close(struct weightd *w)
{
	client_unref(w);
}

struct sentence *client_sentence(struct weightd *w)
{
	return &w->sentence;
}

const char *weightd_error(const struct weightd *w)
{
	return w->sentence.text;
}

const char *weightd_socket(const struct weightd *w)
{
	return w->path ? w->path : "";
}

static int choose_path(struct weightd *w, const char *path)
{
	const char *dir = getenv("XDG_RUNTIME_DIR");
	char *chosen = NULL;

	if (!path || !path[0])
		path = getenv("WEIGHTD_SOCKET");
	if (path && path[0])
		chosen = strdup(path);
	else if (geteuid() == 0)
		chosen = strdup("/run/weightd.sock");
	else if (!dir || !dir[0])
		return sentence_set(
			&w->sentence, -EINVAL,
			"which socket? Set WEIGHTD_SOCKET or XDG_RUNTIME_DIR, or give a path");
	else if (asprintf(&chosen, "%s/weightd.sock", dir) < 0)
		chosen = NULL;
	if (!chosen)
		return sentence_set(&w->sentence, -ENOMEM, "out of memory");
	free(w->path);
	w->path = chosen;
	return 0;
}

static int open_socket(struct weightd *w)
{
	const struct timeval timeout = {.tv_sec = CONNECT_TIMEOUT_MS / 1000};
	cleanup(fd_closep) int fd = -1;
	struct sockaddr_un address;
	int r = channel_address(w->path, &address);

	if (r < 0)
		return sentence_set(&w->sentence, r,
				    "%s cannot be a socket: a path has 1 to 107 bytes", w->path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return sentence_set(&w->sentence, -errno, "no socket: %s", strerror(errno));
	/* Where the server is stopped and its backlog full, connect() waits too. */
	(void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
	do
		r = connect(fd, (const struct sockaddr *)&address, sizeof(address));
	while (r < 0 && errno == EINTR);
	if (r < 0) {
		r = errno == EAGAIN ? -ETIMEDOUT : -errno;
		return sentence_set(
			&w->sentence, r,
			"no weightd answers at %s: %s; start one (weightd --socket %s), or name "
			"another socket with --socket or WEIGHTD_SOCKET",
			w->path, strerror(-r), w->path);
	}
	w->fd = take_fd(fd);
	w->owner = getpid();
	return 0;
}

static int greet(struct weightd *w)
{
	struct client_call call = {.op = WIRE_HELLO, .timeout_ms = CONNECT_TIMEOUT_MS};

	call.request.hello.version = WIRE_VERSION;
	/* For the server's log; a name that is too long is cut. */
	(void)snprintf(call.request.hello.program, sizeof(call.request.hello.program), "%s",
		       program_invocation_short_name);
	return client_call(w, &call);
}

int weightd_connect(struct weightd *w, const char *path)
{
	int r;

	w->fd = fd_close(w->fd);
	r = choose_path(w, path);
	if (r == 0)
		r = open_socket(w);
	if (r == 0)
		r = greet(w);
	if (r < 0)
		w->fd = fd_close(w->fd);
	return r;
}

/*
 * Looks for a while before it sleeps: most answers come within some microseconds, and waking a processor
 * that has gone idle takes as long as the rest of an attach. Yields, so that a server on this very
 * processor can answer.
 */
static bool spin_for_reply(struct pollfd *p)
{
	uint64_t end = num_now_ns() + CLIENT_SPIN_NS;

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
	if (ticking && ms > CLIENT_TICK_MS)
		ms = CLIENT_TICK_MS;
	return ms > INT_MAX ? -1 : (int)ms;
}

/* 0 when there is something to read. */
static int wait_for_reply(int fd, const struct client_call *call)
{
	uint64_t timeout_ms = (uint64_t)(call->timeout_ms ? call->timeout_ms : CLIENT_TIMEOUT_MS);
	uint64_t deadline = call->timeout_ms < 0 ? 0 : num_now_ns() + timeout_ms * 1000000;
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

static int check_usable(struct weightd *w)
{
	if (w->fd < 0)
		return sentence_set(&w->sentence, -ENOTCONN,
				    "not connected to weightd; connect first");
	if (w->owner != getpid())
		return sentence_set(&w->sentence, -ECHILD,
				    "this connection belongs to the parent process; connect again");
	return 0;
}

int client_call(struct weightd *w, struct client_call *call)
{
	size_t size;
	int r;

	for (int i = 0; i < WIRE_FDS_MAX; i++)
		call->reply_fds[i] = -1;
	r = check_usable(w);
	if (r < 0)
		return r;
	size = codec_seal_request(&call->request, call->op, ++w->serial);
	r = channel_send(w->fd, &call->request, size, call->fds, call->request.header.n_fds);
	/* A server that turned us away has said why before it closed: that is read below. */
	if (r < 0 && r != -EPIPE && r != -ECONNRESET)
		return lost(w, r);
	r = wait_for_reply(w->fd, call);
	if (r < 0)
		return lost(w, r);
	return receive_reply(w, call);
}

int client_twin(struct weightd *w, struct weightd **ret)
{
	cleanup(client_unrefp) struct weightd *twin = NULL;
	int r = check_usable(w);

	if (r < 0)
		return r;
	r = weightd_new(&twin);
	if (r < 0)
		return sentence_set(&w->sentence, r, "out of memory");
	r = weightd_connect(twin, w->path);
	if (r < 0) {
		w->sentence = twin->sentence;
		return r;
	}
	*ret = take_ptr(twin);
	return 0;
}

void client_call_deinit(struct client_call *call)
{
	for (int i = 0; i < WIRE_FDS_MAX; i++)
		call->reply_fds[i] = fd_close(call->reply_fds[i]);
}

int client_copy_options(struct weightd *w, const void *options, size_t min, void *ret, size_t size)
{
	const char *tail = options;
	size_t theirs;

	memcpy(&theirs, options, sizeof(theirs));
	if (theirs < min)
		return sentence_set(&w->sentence, -EINVAL,
				    "a struct of options does not say its size (set .size)");
	for (size_t i = size; i < theirs; i++)
		if (tail[i])
			return sentence_set(
				&w->sentence, -E2BIG,
				"this libweightd (%s) is too old for an option that was given",
				weightd_release());
	memcpy(ret, options, theirs < size ? theirs : size);
	return 0;
}

int client_put_target(struct weightd *w, const char *name, const char *device,
		      char name_field[WIRE_NAME_SIZE], char device_field[WIRE_DEVICE_SIZE])
{
	if (codec_put_string(name_field, WIRE_NAME_SIZE, name) < 0 || !name[0])
		return sentence_set(&w->sentence, -EINVAL, "a buffer's name has 1 to %d bytes",
				    WEIGHTD_NAME_MAX);
	if (codec_put_string(device_field, WIRE_DEVICE_SIZE, device ? device : "host") < 0)
		return sentence_set(&w->sentence, -EINVAL, "a device's name has at most %d bytes",
				    WEIGHTD_DEVICE_MAX);
	return 0;
}

void client_end(struct weightd *w, enum wire_op op, uint64_t id)
{
	struct client_call call = {.op = op};
	struct sentence saved = w->sentence;

	if (w->fd < 0 || w->owner != getpid())
		return; /* it ended with its connection, or is the parent's */
	call.request.detach.id = id;
	(void)client_call(w, &call);
	client_call_deinit(&call);
	w->sentence = saved; /* of the failure that led here, perhaps */
}

int weightd_ping(struct weightd *w, struct weightd_server *ret)
{
	struct client_call call = {.op = WIRE_PING};
	const struct wire_ping_reply *p = &call.reply.ping;
	struct weightd_server s;
	size_t size = ret->size < sizeof(s) ? ret->size : sizeof(s);
	int r;

	if (ret->size < offsetof(struct weightd_server, uptime_ns))
		return sentence_set(&w->sentence, -EINVAL,
				    "a struct weightd_server does not say its size (set .size)");
	r = client_call(w, &call);
	if (r < 0)
		return r;
	s = (struct weightd_server){
		.size = size,
		.instance = p->instance,
		.uptime_ns = p->uptime_ns,
		.n_buffers = p->n_buffers,
		.n_sessions = p->n_sessions,
		.n_leases = p->n_leases,
		.n_bytes = p->n_bytes,
		.pid = p->pid,
	};
	memcpy(s.release, p->release, sizeof(s.release));
	memcpy(ret, &s, size);
	return 0;
}

int weightd_drop(struct weightd *w, const char *name, const char *device, uint64_t version)
{
	struct client_call call = {.op = WIRE_DROP};
	struct wire_drop *drop = &call.request.drop;
	int r = client_put_target(w, name, device, drop->name, drop->device);

	if (r < 0)
		return r;
	drop->version = version;
	return client_call(w, &call);
}

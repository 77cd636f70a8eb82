/*
 * A socket to a server, and the greeting on it. It belongs to the process that made it: the server sees one peer, and two
 * processes reading one socket would take each other's replies.
 */
#include "libclient/connection/dial.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/channel.h"
#include "libclient/connection/ask.h"
#include "libclient/connection/release.h"
#include "weightd.h"

/* Like connect(). */
static int connect_to(int fd, const struct sockaddr_un *address)
{
	int r;

	do
		r = connect(fd, (const struct sockaddr *)address, sizeof(*address));
	while (r < 0 && errno == EINTR);
	return r;
}

/* Waits for room in the backlog of a server that is stopped or busy. The socket may block from then on. */
static int connect_patiently(int fd, const struct sockaddr_un *address)
{
	const struct timeval timeout = {.tv_sec = DIAL_TIMEOUT_MS / 1000};

	(void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
	return fcntl(fd, F_SETFL, 0) < 0 ? -1 : connect_to(fd, address);
}

int dial_open(struct weightd *w, bool wait)
{
	cleanup(fd_closep) int fd = -1;
	struct sockaddr_un address;
	int r = channel_address(w->path, &address);

	w->greeted_fd = fd_close(w->greeted_fd);
	if (r < 0)
		return sentence_set(&w->sentence, r,
				    "%s cannot be a socket: a path has 1 to 107 bytes", w->path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return sentence_set(&w->sentence, -errno, "no socket: %s", strerror(errno));
	r = connect_to(fd, &address);
	if (r < 0 && errno == EAGAIN && wait)
		r = connect_patiently(fd, &address);
	if (r < 0 && errno == EAGAIN && wait)
		return sentence_set(&w->sentence, -ETIMEDOUT,
				    "weightd at %s accepted no connection within %d s; is it "
				    "stopped?",
				    w->path, DIAL_TIMEOUT_MS / 1000);
	if (r < 0)
		return sentence_set(&w->sentence, -errno, "cannot connect to weightd at %s: %s",
				    w->path, strerror(errno));
	w->fd = take_fd(fd);
	w->owner = getpid();
	return 0;
}

static void hello_fill(struct wire_hello *hello)
{
	hello->version = WIRE_VERSION;
	hello->features = WIRE_FEATURE_IMAGE | WIRE_FEATURE_OWNER;
	/* The server logs this name. A name that is too long is cut. */
	(void)snprintf(hello->program, sizeof(hello->program), "%s", program_invocation_short_name);
}

static void hello_take(struct weightd *w, const struct wire_hello_reply *reply)
{
	release_take(w, reply);
	w->instance = reply->instance;
	w->survives = reply->features & WIRE_FEATURE_SURVIVES;
	w->sends_layouts = reply->features & WIRE_FEATURE_LAYOUT;
	w->has_images = reply->features & WIRE_FEATURE_IMAGE;
	w->has_jobs = reply->features & WIRE_FEATURE_JOBS;
	w->has_costs = reply->features & WIRE_FEATURE_COSTS;
	w->has_holders = reply->features & WIRE_FEATURE_HOLDERS;
	w->has_health = reply->features & WIRE_FEATURE_HEALTH;
	w->has_job_views = reply->features & WIRE_FEATURE_JOB_VIEW;
	w->has_owners = reply->features & WIRE_FEATURE_OWNER;
	w->provides = reply->features & WIRE_FEATURE_PROVIDE;
	w->shares = reply->features & WIRE_FEATURE_SHARE;
	w->has_numa = reply->features & WIRE_FEATURE_NUMA;
	w->is_placed = false;
}

/* `hello` NULL: the server has not sent its own. */
static int hello_end(struct weightd *w, const struct wire_hello_reply *hello, int r)
{
	if (hello)
		hello_take(w, hello);
	if (r == -EPROTONOSUPPORT) /* the server's sentence names its own release */
		return sentence_set(&w->sentence, r, "%s; libweightd is %s (%s)", w->sentence.text,
				    weightd_release(), weightd_library());
	return r;
}

int dial_greet(struct weightd *w, int timeout_ms, const struct restart_patience *p)
{
	struct client_call call = {.op = WIRE_HELLO, .timeout_ms = timeout_ms};
	int r;

	if (p) {
		call.tick = p->tick;
		call.userdata = p->userdata;
	}
	hello_fill(&call.request.hello);
	r = client_ask(w, &call);
	return hello_end(w, r == 0 ? &call.reply.hello : NULL, r);
}

/* The server's hello in the reply; NULL: there is none. */
static const struct wire_hello_reply *hello_beside(const struct wire_reply *reply)
{
	switch (reply->header.op) {
	case WIRE_HELLO_ATTACH | WIRE_REPLY:
		return &reply->hello_attach.hello;
	case WIRE_HELLO_ERROR | WIRE_REPLY:
		return &reply->hello_error.hello;
	default:
		return NULL;
	}
}

int dial_attach(struct weightd *w, struct client_call *call)
{
	const struct wire_hello_reply *hello;
	int r;

	call->op = WIRE_HELLO_ATTACH;
	call->timeout_ms = DIAL_TIMEOUT_MS;
	hello_fill(&call->request.hello_attach.hello);
	r = client_ask(w, call);
	hello = hello_beside(&call->reply);
	if (!hello)
		w->fd = fd_close(w->fd);
	return hello_end(w, hello, r);
}

int dial_greet_send(struct weightd *w)
{
	struct client_call call = {.op = WIRE_HELLO};

	hello_fill(&call.request.hello);
	return client_ask_send(w, &call);
}

int dial_greet_receive(struct weightd *w)
{
	struct client_call call = {.op = WIRE_HELLO};
	int r;

	client_call_init_fds(&call);
	r = client_ask_receive(w, &call);
	return hello_end(w, r == 0 ? &call.reply.hello : NULL, r);
}

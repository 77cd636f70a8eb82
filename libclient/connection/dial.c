/*
 * A socket to a server, and the greeting on it. It belongs to the process that made it: the server sees one peer, and two
 * processes reading one socket would take each other's replies.
 */
#include "libclient/connection/dial.h"

#include <errno.h>
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

int dial_open(struct weightd *w, bool wait)
{
	const struct timeval timeout = {.tv_sec = DIAL_TIMEOUT_MS / 1000};
	cleanup(fd_closep) int fd = -1;
	struct sockaddr_un address;
	int r = channel_address(w->path, &address);

	w->greeted_fd = fd_close(w->greeted_fd);
	if (r < 0)
		return sentence_set(&w->sentence, r,
				    "%s cannot be a socket: a path has 1 to 107 bytes", w->path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | (wait ? 0 : SOCK_NONBLOCK), 0);
	if (fd < 0)
		return sentence_set(&w->sentence, -errno, "no socket: %s", strerror(errno));
	/* connect() waits too, while the server is stopped and its backlog is full. */
	(void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
	do
		r = connect(fd, (const struct sockaddr *)&address, sizeof(address));
	while (r < 0 && errno == EINTR);
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

static void hello_fill(struct client_call *call)
{
	call->op = WIRE_HELLO;
	call->request.hello.version = WIRE_VERSION;
	call->request.hello.features = WIRE_FEATURE_IMAGE | WIRE_FEATURE_OWNER;
	/* The server logs this name. A name that is too long is cut. */
	(void)snprintf(call->request.hello.program, sizeof(call->request.hello.program), "%s",
		       program_invocation_short_name);
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
}

static int hello_end(struct weightd *w, const struct client_call *call, int r)
{
	if (r == 0)
		hello_take(w, &call->reply.hello);
	if (r == -EPROTONOSUPPORT) /* the server's sentence names its own release */
		return sentence_set(&w->sentence, r, "%s; libweightd is %s (%s)", w->sentence.text,
				    weightd_release(), weightd_library());
	return r;
}

int dial_greet(struct weightd *w, int timeout_ms, const struct restart_patience *p)
{
	struct client_call call = {.timeout_ms = timeout_ms};

	if (p) {
		call.tick = p->tick;
		call.userdata = p->userdata;
	}
	hello_fill(&call);
	return hello_end(w, &call, client_ask(w, &call));
}

int dial_greet_send(struct weightd *w)
{
	struct client_call call = {0};

	hello_fill(&call);
	return client_ask_send(w, &call);
}

int dial_greet_receive(struct weightd *w)
{
	struct client_call call = {.op = WIRE_HELLO};

	client_call_init_fds(&call);
	return hello_end(w, &call, client_ask_receive(w, &call));
}

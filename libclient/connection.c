/*
 * It belongs to the process that made it: the server sees one peer, and two processes reading one socket would
 * take each other's replies.
 */
#include "libclient/connection.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/channel.h"
#include "libclient/call.h"
#include "libclient/rendezvous.h"
#include "weightd.h"

#define CONNECT_TIMEOUT_MS 5000
#define MEETINGS_MAX 20

int connection_open(struct weightd *w, bool wait)
{
	const struct timeval timeout = {.tv_sec = CONNECT_TIMEOUT_MS / 1000};
	cleanup(fd_closep) int fd = -1;
	struct sockaddr_un address;
	int r = channel_address(w->path, &address);

	if (r < 0)
		return sentence_set(&w->sentence, r,
				    "%s cannot be a socket: a path has 1 to 107 bytes", w->path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | (wait ? 0 : SOCK_NONBLOCK), 0);
	if (fd < 0)
		return sentence_set(&w->sentence, -errno, "no socket: %s", strerror(errno));
	/* Where the server is stopped and its backlog full, connect() waits too. */
	(void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
	do
		r = connect(fd, (const struct sockaddr *)&address, sizeof(address));
	while (r < 0 && errno == EINTR);
	if (r < 0 && errno == EAGAIN && wait)
		return sentence_set(&w->sentence, -ETIMEDOUT,
				    "weightd at %s takes no connection for %d s; is it stopped?",
				    w->path, CONNECT_TIMEOUT_MS / 1000);
	if (r < 0)
		return sentence_set(&w->sentence, -errno, "cannot connect to weightd at %s: %s",
				    w->path, strerror(errno));
	w->fd = take_fd(fd);
	w->owner = getpid();
	return 0;
}

int connection_greet(struct weightd *w, int timeout_ms, const struct restart_patience *p)
{
	struct client_call call = {.op = WIRE_HELLO, .timeout_ms = timeout_ms};
	const struct wire_hello_reply *reply = &call.reply.hello;
	int r;

	if (p) {
		call.tick = p->tick;
		call.userdata = p->userdata;
	}
	call.request.hello.version = WIRE_VERSION;
	/* For the server's log; a name that is too long is cut. */
	(void)snprintf(call.request.hello.program, sizeof(call.request.hello.program), "%s",
		       program_invocation_short_name);
	r = client_ask(w, &call);
	if (r < 0)
		return r;
	w->instance = reply->instance;
	w->survives = reply->features & WIRE_FEATURE_SURVIVES;
	w->sends_layouts = reply->features & WIRE_FEATURE_LAYOUT;
	return 0;
}

/*
 * The first time. A server that dies when it has just taken us looks like one that hangs up; that it is
 * started again is known only once it has said so: hence another try, which fails where nobody listens.
 */
static int meet(struct weightd *w, struct rendezvous *z)
{
	int r = -ENOTCONN;

	for (int i = 0; i < MEETINGS_MAX && r == -ENOTCONN; i++) {
		r = rendezvous_open(z, w);
		if (r == 0)
			r = connection_greet(w, CONNECT_TIMEOUT_MS, NULL);
	}
	return r;
}

int weightd_connect(struct weightd *w, const char *path)
{
	const struct restart_patience patience = {
		.until_ns = UINT64_MAX,
		.deadline_ns = UINT64_MAX,
	};
	cleanup(rendezvous_deinit) struct rendezvous z;
	cleanup(freep) char *before = NULL;
	bool was_same;
	int r;

	w->fd = fd_close(w->fd);
	r = rendezvous_init(&z, path);
	if (r < 0)
		return sentence_set(&w->sentence, r, "out of memory");
	was_same = w->survives && w->owner == getpid();
	w->survives = false;
	before = take_ptr(w->path);
	r = meet(w, &z);
	if (r == 0 && was_same && w->survives && !strcmp(w->path, before))
		r = restart_take_up(w, &patience);
	else if (r == 0)
		restart_forget(w);
	if (r < 0)
		w->fd = fd_close(w->fd);
	return r;
}

/* As `w`: a server that is just being started again is waited for. */
static int connect_twin(struct weightd *twin, const struct weightd *w)
{
	const struct restart_patience patience = {
		.until_ns = restart_until(w),
		.deadline_ns = UINT64_MAX,
	};

	twin->restart_timeout_ms = w->restart_timeout_ms;
	if (!restart_is_awaited(w))
		return weightd_connect(twin, w->path);
	twin->path = strdup(w->path);
	if (!twin->path)
		return sentence_set(&twin->sentence, -ENOMEM, "out of memory");
	return restart_wait(twin, &patience);
}

int client_twin(struct weightd *w, struct weightd **ret)
{
	cleanup(client_unrefp) struct weightd *twin = NULL;
	int r = client_check_usable(w);

	if (r < 0)
		return r;
	r = weightd_new(&twin);
	if (r < 0)
		return sentence_set(&w->sentence, r, "out of memory");
	r = connect_twin(twin, w);
	if (r < 0) {
		w->sentence = twin->sentence;
		return r;
	}
	*ret = take_ptr(twin);
	return 0;
}

/*
 * A new connection to the same server resumes leases and writers of the previous one.
 */
#include "libclient/connection/connection.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "libclient/connection/ask.h"
#include "libclient/connection/dial.h"
#include "libclient/connection/rendezvous.h"
#include "libclient/connection/restart.h"
#include "weightd.h"

#define MEETINGS_MAX 20

/*
 * The first connection. A server that dies just after accepting looks like one that hangs up, and only its hello
 * announces that it will restart: hence another try, which fails if nothing listens.
 */
static int connection_meet(struct weightd *w, struct rendezvous *z)
{
	int r = -ENOTCONN;

	for (int i = 0; i < MEETINGS_MAX && r == -ENOTCONN; i++) {
		r = rendezvous_open(z, w);
		if (r == 0)
			r = dial_greet(w, DIAL_TIMEOUT_MS, NULL);
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
	r = connection_meet(w, &z);
	if (r == 0 && was_same && w->survives && !strcmp(w->path, before))
		r = restart_take_up(w, &patience);
	else if (r == 0)
		restart_forget(w);
	if (r < 0)
		w->fd = fd_close(w->fd);
	return r;
}

static bool holds_nothing(const struct weightd *w)
{
	return list_empty(&w->buffers) && list_empty(&w->writers) && list_empty(&w->jobs);
}

/* -ENOTCONN: connect with weightd_connect(), which finds out the reason. */
static int connection_attach_first(struct weightd *w, const char *path, struct client_call *call)
{
	cleanup(rendezvous_deinit) struct rendezvous z;
	cleanup(freep) char *before = NULL;
	int r = rendezvous_init(&z, path);

	client_call_init_fds(call);
	if (r < 0)
		return sentence_set(&w->sentence, r, "out of memory");
	w->survives = false;
	before = take_ptr(w->path); /* `path` may be the same */
	r = rendezvous_open(&z, w);
	return r < 0 ? r : dial_attach(w, call);
}

int connection_attach(struct weightd *w, const char *path, struct client_call *call)
{
	enum wire_op op = call->op;
	int r = -ENOTCONN;

	if (!path)
		path = w->path;
	/* Leases and writers are resumed before anything else. */
	if (holds_nothing(w))
		r = connection_attach_first(w, path, call);
	if (r != -ENOTCONN)
		return r;
	call->op = op;
	call->timeout_ms = 0;
	r = weightd_connect(w, path);
	return r < 0 ? r : CONNECTION_ONLY;
}

/* As `w`: a server that is just being started again is waited for. */
static int connect_twin(struct weightd *twin, const struct weightd *w)
{
	const struct restart_patience patience = {
		.until_ns = restart_until(w),
		.deadline_ns = UINT64_MAX,
	};

	twin->restart_timeout_ms = w->restart_timeout_ms;
	if (!client_awaits_restart(w))
		return weightd_connect(twin, w->path);
	twin->path = strdup(w->path);
	if (!twin->path)
		return sentence_set(&twin->sentence, -ENOMEM, "out of memory");
	return restart_wait(twin, &patience);
}

int connection_twin(struct weightd *w, struct weightd **ret)
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

/*
 * Sessions
 *
 * One connected client. It sends requests and receives replies strictly in turn: until a reply is
 * sent, weightd reads nothing more from it. It owns its leases and writers, and its places in
 * jobs, which end with it. A
 * client that breaks the protocol, or does not read its replies, loses its connection, without an
 * effect on other clients.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/list.h"
#include "ipc/channel.h"
#include "ipc/codec.h"
#include "server/base/loop.h"
#include "server/state/quota.h"

struct device_query;
struct group_caller;
struct server;
struct paused_reader;
struct waiter;
struct watcher;

struct session {
	struct list link; /* server::sessions */
	struct server *server;
	struct source source; /* the socket, which the session owns */
	struct channel_peer peer;
	uint64_t serial; /* serial of the request in progress */
	bool greeted;
	uint64_t features; /* WIRE_FEATURE_* of the client */
	bool pending; /* an answer is owed */
	bool doomed; /* to be closed in the loop's next round */
	struct list leases;
	struct list writers;
	struct list members; /* jobs that it is a rank of */
	struct waiter *waiter; /* at most one of these five */
	struct paused_reader *paused_reader;
	struct watcher *watcher;
	struct device_query *device_query;
	struct group_caller *group_caller;
	void (*closed)(void *context); /* after the end: descriptors are free */
	void *closed_context;
	struct charge charge;
};

/* Shuts the connection down, for that reason. It is closed in the loop's next round. */
void session_doom(struct session *s, const char *why);

/*
 * Answers the request in progress; the caller keeps the descriptors. On failure the client has
 * received an error or is disconnected, and the caller must undo what the answer promised.
 */
int session_reply(struct session *s, enum wire_op op, struct wire_reply *reply, const int *fds,
		  unsigned n_fds);

/* Answers the request at hand with an error and its sentence. */
__attribute__((format(printf, 3, 4))) void session_fail(struct session *s, int error,
							const char *fmt, ...);

/* Likewise for a charge that failed: `what` there are too many of, and the way out. */
void session_fail_quota(struct session *s, int r, const char *what);

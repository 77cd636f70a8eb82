/*
 * Sessions
 *
 * One connected client. It sends requests and receives replies strictly in turn: until a reply is
 * sent, weightd reads nothing more from it. It is served in the turn of its user (turns.h). It owns
 * its leases and writers, and its places in jobs, which end with it. A client that breaks the
 * protocol, or does not read its replies, loses its connection, without an effect on other clients.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/list.h"
#include "ipc/base/numa.h"
#include "ipc/channel.h"
#include "ipc/codec.h"
#include "server/base/loop.h"
#include "server/state/quota.h"

struct cost;
struct device_query;
struct group_caller;
struct server;
struct paused_reader;
struct waiter;
struct watcher;

struct session {
	struct list link; /* server::sessions or refusals */
	struct server *server;
	struct source source; /* the socket, which the session owns */
	struct list ready_link; /* turn::ready or turn::again; see turns_add() */
	struct cost *cost; /* its user's, referenced */
	struct channel_peer peer;
	uint64_t serial; /* serial of the request in progress */
	bool greeted;
	bool greets; /* the request being handled is a hello too: its reply has the server's */
	uint64_t features; /* WIRE_FEATURE_* of the client */
	bool readable; /* there may be a packet to read */
	bool hung_up;
	bool pending; /* an answer is owed */
	void (*due)(struct session *s); /* see session_wake() */
	const char *refusal; /* it is no session, and its client is to be refused for that reason */
	bool doomed; /* to be closed in its user's next turn */
	bool closing; /* its leases, writers and places are being freed, in turns of its user */
	bool killed; /* its process was, for what it holds */
	bool unkillable; /* its process is not the user's any more, or has left the connection to another one */
	bool evicted; /* the update that goes on without it has told so; see reader_pause.c */
	struct numa_policy numa; /* of host memory that is made for its creates */
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

/* Shuts the connection down, for that reason. It is closed in its user's next turn. */
void session_doom(struct session *s, const char *why);

/*
 * Calls `due` in a turn of the session's user: one change may answer the requests of thousands. It must
 * look again for what it answers, and may find that it is over, or not true any more.
 */
void session_wake(struct session *s, void (*due)(struct session *s));

/*
 * Answers the request in progress; the caller keeps the descriptors. On failure the client has
 * received an error or is disconnected, and the caller must undo what the answer promised.
 */
int session_reply(struct session *s, enum wire_op op, struct wire_reply *reply, const int *fds,
		  unsigned n_fds);

/* Fills the server's hello. */
void session_fill_hello(const struct session *s, struct wire_hello_reply *ret);

/* Answers the request at hand with an error and its sentence. */
__attribute__((format(printf, 3, 4))) void session_fail(struct session *s, int error,
							const char *fmt, ...);

/* Memory that a user has too much of, and the way out. */
#define SESSION_MEMORY                                                                              \
	"bytes or descriptors; remove some buffers or versions (weightctl rm), or raise bytes= or " \
	"descriptors= in [limits] of weightd.conf"

/* Likewise for a charge that failed: `what` there are too many of, and the way out. */
void session_fail_quota(struct session *s, int r, const char *what);

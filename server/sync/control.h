/*
 * The control socket
 *
 * People and scripts send requests to this node's agent here, with weightctl. Requests and rows are JSON objects, one a
 * packet (json_packet.h), and the last packet of an answer has "end". Every process that reaches the socket may read the
 * state; only operators may push and cancel. A push of a busy buffer may wait for its turn: it is served after those
 * that have waited longer, and loses its turn when the client closes the connection. The agent closes the connection of
 * a client that does not read, so that it delays no other.
 */
#pragma once

#include <jansson.h>
#include <sys/types.h>

#include "server/base/loop.h"
#include "server/sync/agent.h"

struct control_options {
	const char *path;
	const char *operators; /* the name of the Unix group that may push, NULL: none */
	gid_t operators_gid; /* -1: none */
	struct agent *agent;
	json_t *(*nodes)(void *userdata); /* an array of rows, the caller's */
	json_t *(*replicas)(void *userdata,
			    const char *node); /* the same; NULL: there is no such node */
	void *userdata;
};

struct control {
	const struct control_options *options; /* borrowed */
	struct loop *loop;
	struct source listener;
	struct timer pause; /* delays accept() when we are out of descriptors */
	struct timer turn; /* begins syncs that waited for the end of another */
	struct list clients;
	unsigned n_clients;
};

/* -errno with a sentence. A socket that nobody listens on any more is replaced. */
int control_init(struct control *c, struct loop *l, const struct control_options *options,
		 char why[WHY_SIZE]);
void control_deinit(struct control *c);

/* Sends an event of the agent to clients that watch, and to those that wait for this sync. */
void control_tell(struct control *c, const json_t *event);

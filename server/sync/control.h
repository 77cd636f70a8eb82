/*
 * The control socket
 *
 * Where people and scripts ask this node's agent, with weightctl: requests and rows are JSON objects, one a
 * packet (json_packet.h), and the last packet of an answer has "end". Everyone who reaches the socket may look;
 * pushing and cancelling is the operators'. Who wants to push what is busy may wait for his turn, which he has after
 * those who wait for longer, and loses when he hangs up. A client that does not read is hung up on, and holds up nobody.
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
	struct timer pause; /* of accepting, when we are out of descriptors */
	struct timer turn; /* of who waits for the end of a sync to begin another */
	struct list clients;
	unsigned n_clients;
};

/* -errno with a sentence. A socket that nobody listens on any more is replaced. */
int control_init(struct control *c, struct loop *l, const struct control_options *options,
		 char why[WHY_SIZE]);
void control_deinit(struct control *c);

/* Sends an event of the agent to clients that watch, and to those that wait for this sync. */
void control_tell(struct control *c, const json_t *event);

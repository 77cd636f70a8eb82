/*
 * Processes all of whose sockets are counted, or control groups all of whose processes' are, until they are gone or
 * their client is
 */
#pragma once

#include "bpf/client.h"
#include "ipc/base/list.h"
#include "server/base/loop.h"

/* Of one client, but of root's and the tracer's own: those of a user leave room in the meter for all others'. */
#define WATCHES_MAX 128

struct watch {
	struct list link; /* client::watches */
	struct client *client;
	struct source source; /* of its end; fd -1: of a group, which is one for ever */
	pid_t pid; /* 0: a group is watched */
	uint64_t cgroup; /* the kernel's number of it */
	uint32_t row;
};

/* Counts its sockets no more. */
void watch_end(struct watch *w);
void watch_free(struct watch *w);

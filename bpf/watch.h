/*
 * Watches: all sockets of a process, or of all processes of a control group, are counted until it ends or its client
 * does
 */
#pragma once

#include "bpf/client.h"
#include "ipc/base/list.h"
#include "server/base/loop.h"

/*
 * per client, not for root and the tracer's own user: one user leaves room in the meter for the others
 */
#define WATCHES_MAX 128

struct watch {
	struct list link; /* client::watches */
	struct client *client;
	struct source source; /* ends it; fd -1: a group, which is watched until its client ends */
	pid_t pid; /* 0: a group is watched */
	uint64_t cgroup; /* the kernel's number of it */
	uint32_t row;
};

/* Counts its sockets no more. */
void watch_end(struct watch *w);
void watch_free(struct watch *w);

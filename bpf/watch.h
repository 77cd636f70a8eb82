/*
 * Processes whose sockets are counted
 */
#pragma once

#include "bpf/request.h"

struct watch {
	struct list link; /* client::watches */
	struct client *client;
	struct waiter waiter; /* of its end */
	pid_t pid;
};

int watch_op(struct request *q);
void watch_free(struct watch *w);

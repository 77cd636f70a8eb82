/*
 * Discards
 *
 * Sockets of clients whose unread packets hold descriptors that may block in close(), more of them than a
 * thread should wait for: a child process has them as well for a moment, so that to close them here ends
 * nothing, and then exits. A process that exits waits for no linger time, which is what makes sockets block.
 * What blocks even there holds up the child, of which there are few.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "server/base/loop.h"

#define DISCARDS_MAX 256
#define DISCARD_CHILDREN_MAX 8

struct discards {
	struct loop *loop;
	struct timer timer;
	int fds[DISCARDS_MAX];
	unsigned n_fds;
	pid_t children[DISCARD_CHILDREN_MAX]; /* 0: none */
};

void discards_init(struct discards *d, struct loop *l);
/* Closes what is left, which may block. */
void discards_deinit(struct discards *d);

/* Takes a socket. False: it was not taken, for there are too many children that hang. */
bool discards_add(struct discards *d, int fd);

/*
 * Endpoints: TCP sockets at the address of a node, and waits for them in ticks
 *
 * All sockets are close-on-exec and do not block.
 */
#pragma once

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "libclient/train/nodes/engine.h"

/* Calls of a check while something blocks. */
struct ticks {
	engine_check *check;
	void *data;
	uint64_t due_ns; /* of the next call */
};

void ticks_init(struct ticks *t, engine_check *check, void *data);

/* poll(), until the next call of the check at most. Returns what the check returned, or 0; a signal makes it due. */
int ticks_poll(struct ticks *t, struct pollfd *fds, uint32_t n);

/* Waits for the next call of the check. */
int ticks_pass(struct ticks *t);

/*
 * Listens at `address`. Where that is a name, or no address of this machine, at all of them: a machine may have its own name
 * for its loopback interface, and an address may be translated. -EADDRINUSE with a sentence, after it has been so for a while.
 */
int endpoint_listen(const char *address, uint16_t port, struct ticks *t, int *ret_fd);

/*
 * Connects, as soon as something listens there. -EADDRNOTAVAIL with a sentence for a name that is unknown, or what the check
 * returned.
 */
int endpoint_connect(const char *address, uint16_t port, struct ticks *t, int *ret_fd);

/* The address of this machine that a connection has, with port 0. */
int endpoint_own(int fd, struct sockaddr_storage *ret);

/*
 * Children
 *
 * A program of ours beside weightd, which may hang or crash where weightd may not. It gets one socket, and of
 * weightd's descriptors, signals and surroundings nothing else. It is talked to from a worker's thread; the
 * thread's end is its end too.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "ipc/channel.h"

#define CHILD_WHY_SIZE 256

struct child {
	pid_t pid; /* 0: there is none */
	int pidfd;
	int fd; /* our end of the socket; its own is descriptor 3 */
};

void child_init(struct child *c);

/*
 * The program `name`, in the folder of weightd's own unless `path` is not empty, with one argument. -errno
 * with a clause why.
 */
int child_start(struct child *c, const char *path, const char *name, const char *argument,
		char ret_why[CHILD_WHY_SIZE]);

/*
 * Sends a request and waits for the packet that answers it, which is the caller's to deinit. -ETIMEDOUT; -EPIPE:
 * it is gone; -ECANCELED: `stop_fd` became readable.
 */
int child_call(struct child *c, const void *request, size_t size, uint64_t deadline_ns, int stop_fd,
	       struct channel_packet *ret);

/* Kills it at once. */
void child_kill(const struct child *c);

/*
 * Hangs up, kills it if it does not go within a second, and says how it went: "signal 9". -EBUSY: it cannot
 * be killed yet, the driver has it; call it again later.
 */
int child_end(struct child *c, char ret_how[CHILD_WHY_SIZE]);

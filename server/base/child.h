/*
 * Children
 *
 * A program of ours beside weightd, which may hang or crash where weightd may not. It gets one socket, and of
 * weightd's descriptors, signals and surroundings nothing else. It is talked to from a worker's thread; the
 * thread's end is its end too.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "ipc/channel.h"

#define CHILD_WHY_SIZE 256
#define CHILD_LEFT_MAX                                                                             \
	8 /* children that may be left behind; init waits for others after weightd has exited */

struct child {
	pid_t pid; /* 0: there is none */
	int pidfd;
	int fd; /* our end of the socket; its own is descriptor 3 */
	pid_t left[CHILD_LEFT_MAX]; /* children that child_leave() left, and still run; 0: none */
};

void child_init(struct child *c);

/*
 * The program `name`, in the folder of weightd's own unless `path` is not empty, with one argument. -errno
 * with a clause why.
 */
int child_start(struct child *c, const char *path, const char *name, const char *argument,
		char ret_why[CHILD_WHY_SIZE]);

/*
 * Sends a request and waits for the reply, which the caller must deinit. -ETIMEDOUT; -EPIPE: the
 * child has ended; -ECANCELED: `stop_fd` became readable.
 */
int child_call(struct child *c, const void *request, size_t size, uint64_t deadline_ns, int stop_fd,
	       struct channel_packet *ret);

/* Kills it at once. */
void child_kill(const struct child *c);

/*
 * Hangs up, kills it if it does not exit within a second, and describes the end: "signal 9".
 * -EBUSY: it cannot be killed yet, the driver has it; call it again later.
 */
int child_end(struct child *c, char ret_how[CHILD_WHY_SIZE]);

/* Hangs up and lets it live: others need it. */
void child_leave(struct child *c);

/* Waits, without blocking, for those that were left; and for this one, if it is over. True: some are not. */
bool child_look(struct child *c);

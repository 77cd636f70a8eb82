/*
 * The closer: gets rid of what clients sent, and of their connections, which may have more of it inside
 *
 * Closing a descriptor takes as long as whoever made it likes: a socket with SO_LINGER waits until what it has to send
 * is acknowledged. Each closing has a thread of its own, which may be stuck without holding up anybody; a user with too
 * many of them waits until one of his is done.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "ipc/base/list.h"
#include "server/base/loop.h"

#define DESCRIPTORS_MAX 253 /* that can come with one packet: SCM_MAX_FD of the kernel */

struct closer;

/* Between closer_close() and done() it belongs to the closer. */
struct closing {
	struct list link; /* closer::waiting, closer::running or closer::finished */
	struct closer *closer;
	uid_t uid; /* whose they are */
	int fds[DESCRIPTORS_MAX];
	unsigned n;
	bool is_refused; /* a connection that nobody reads */
	void (*done)(struct closing *closing); /* on the loop's thread; may free it, or close more */
};

/* 0, or negative errno. */
int closer_new(struct loop *l, struct closer **ret);
/* From now on nothing is closed any more: what is open goes with the process, which does not linger. */
void closer_end(struct closer *c);
/* After the end. What is stuck goes with the process, too. Takes NULL. */
void closer_free(struct closer *c);

/* Takes what is in closing::fds; `done` is told, perhaps at once. */
void closer_close(struct closer *c, struct closing *closing, uid_t uid,
		  void (*done)(struct closing *closing));

/*
 * The closer: closes the descriptors that clients sent, and their connections, which may have more descriptors inside
 *
 * Closing a descriptor takes as long as its maker likes: a socket with SO_LINGER waits until its bytes are
 * acknowledged. Each closing has a thread of its own, which may be stuck and holds up nothing else. A user with too
 * many threads waits until one of them is done.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "ipc/base/list.h"
#include "server/base/loop.h"

#define DESCRIPTORS_MAX 253 /* most that fit into one packet: SCM_MAX_FD of the kernel */

struct closer;

/* Between closer_close() and done() it belongs to the closer. */
struct closing {
	struct list link; /* closer::waiting, closer::running or closer::finished */
	struct closer *closer;
	uid_t uid; /* the user that sent them */
	int fds[DESCRIPTORS_MAX];
	unsigned n;
	bool is_refused; /* a connection that is never read */
	void (*done)(struct closing *closing); /* on the loop's thread; may free it, or close more */
};

/* 0, or negative errno. */
int closer_new(struct loop *l, struct closer **ret);
/*
 * From now on nothing is closed any more: the process ends, and open descriptors with it, without lingering.
 */
void closer_end(struct closer *c);
/* After closer_end(). A stuck closing ends with the process. Takes NULL. */
void closer_free(struct closer *c);

/* Takes the descriptors in closing::fds, and calls `done` after that, perhaps at once. */
void closer_close(struct closer *c, struct closing *closing, uid_t uid,
		  void (*done)(struct closing *closing));

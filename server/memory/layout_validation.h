/*
 * Layout validation
 *
 * Checks a layout that a client sent in a sealed memfd: once, in steps on the worker, since a big
 * one takes long. A layout that passes becomes a table and is never checked again. While it is
 * checked, its bytes count among the costs of the client's user; of all of them together no more
 * than a window is mapped.
 */
#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "ipc/layout.h"
#include "ipc/layout_check.h"

struct cost;
struct layout_window;
struct server;

struct layout_validation {
	int fd; /* read-only; -1 once it was taken */
	uint64_t size;
	struct layout_window *window;
	struct cost *cost; /* NULL: it is not being checked */
	struct layout_check check; /* has the error, and where it is */
	struct layout_header header; /* set when it passed */
};

void layout_validation_init(struct layout_validation *i);
/* Called between steps, or after the last; the descriptor is the caller's to close, since that may take long. */
void layout_validation_deinit(struct layout_validation *i);

/*
 * Opens a descriptor of a user's client, which the caller keeps: -EBADMSG unless it is a sealed memfd
 * of at most 1 GiB.
 */
int layout_validation_open(struct layout_validation *i, struct server *server, uid_t uid, int fd);

/* On the worker: a job's step. JOB_AGAIN, JOB_DONE or what is wrong. */
int layout_validation_step(struct layout_validation *i);
/* On the worker: gives it up. -ECANCELED. */
int layout_validation_cancel(struct layout_validation *i);

/*
 * The listener
 *
 * The socket clients connect to: passed on by systemd, or made at a path. A path is held by a lock on
 * PATH.lock for as long as the daemon lives, so the socket of a live daemon is never removed and that of
 * a dead one always is.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "server/base/loop.h"

struct inherit;
struct server;

struct listener {
	struct server *server;
	struct source source;
	struct timer pause; /* runs while there are no descriptors for new clients */
	int fd;
	uint64_t last_round; /* loop::n_rounds at the last connection */
	int lock_fd;
	char *path; /* path of a socket that weightd made; NULL when it was passed on */
};

/*
 * `path` NULL: the socket passed on by systemd, else $WEIGHTD_SOCKET, else the default of
 * ipc/socket_path.h: the system's for root (its folder is made), and the user's for a user. A
 * socket at that path that an earlier weightd left in the store is used again, so that no client is
 * refused in between. Logs its failures.
 */
int listener_init(struct listener *l, struct server *server, struct inherit *in, const char *path,
		  mode_t mode);
/* Closes it; removes the socket it made, unless that is to stay. */
void listener_deinit(struct listener *l, bool stay);

/* A descriptor became free. */
void listener_resume(struct listener *l);

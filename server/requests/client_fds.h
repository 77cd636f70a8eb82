/*
 * Descriptors of clients
 *
 * Closes what clients sent, and their connections. Memfds are closed by the worker. Everything else
 * may block in close(), and has a thread of the user for that. While too many descriptors of a user
 * are being closed, weightd reads nothing from that user; while the thread is stuck with them, the
 * user loses its connections and gets no more. Connections that are refused meanwhile are discarded.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "server/base/discard.h"
#include "server/base/threads/async_close.h"

struct server;
struct session;

struct client_fds {
	struct async_close async_close;
	struct discards discards;
	struct server *server;
	struct timer look; /* at users whose sessions are parked: nothing shows that a thread is stuck */
};

int client_fds_init(struct client_fds *c, struct server *server);
/* False when something is still stuck: it ends with the process, and so does its charge. */
bool client_fds_deinit(struct client_fds *c);

/* Takes descriptors, which a client of this user sent, and reorders them. */
void client_fds_close(struct client_fds *c, uid_t uid, int *fds, unsigned n);

/* Takes a socket of this user that has unread packets, which may hold descriptors. */
void client_fds_hang_up(struct client_fds *c, uid_t uid, int fd);

/* True while too many descriptors of the session's user are being closed: it is parked until some are. */
bool client_fds_hold_up(struct client_fds *c, struct session *s);

/* False while too many descriptors of the user are being closed. */
bool client_fds_have_room(const struct client_fds *c, uid_t uid);

/* False for a user with too many descriptors in a thread that is stuck. */
bool client_fds_are_trusted(const struct client_fds *c, uid_t uid);

/*
 * Connections
 *
 * The socket of a session: receives its requests, in the turns of its user, and ends what the session
 * owns when it is closed. A client that breaks the protocol loses the connection.
 */
#pragma once

#include <stdint.h>

struct server;
struct session;

/*
 * Takes the socket in any case. A client over its limits receives an error and gets no session. `closed` is
 * called when the session is over. The peer's user is charged for the time since `began_ns`. Returns the time.
 */
uint64_t connection_new(struct server *server, int fd, uint64_t began_ns,
			void (*closed)(void *context), void *context);

/* In its user's turn: reads and handles one request, or frees a part of a session that ends. */
void connection_serve(struct session *s);

/* At once, and wholly. */
void connection_close(struct session *s);

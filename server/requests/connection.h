/*
 * Connections
 *
 * The socket of a session: receives its requests in turn, and ends what the session owns when it is closed.
 * What a client sends may break the protocol; then it loses the connection.
 */
#pragma once

struct server;
struct session;

/*
 * Takes the socket in any case. A client over its limits receives an error and gets no session. `closed` is
 * called when the session is over.
 */
void connection_new(struct server *server, int fd, void (*closed)(void *context), void *context);
void connection_close(struct session *s);

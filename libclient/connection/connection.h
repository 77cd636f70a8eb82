/*
 * Connections: the first one to a server, reconnects, and second ones to the same server
 */
#pragma once

#include "libclient/connection/client.h"

struct client_call;

/* Connected, and the request was not sent. */
#define CONNECTION_ONLY 1

/*
 * Connects like weightd_connect() and sends the attach of `call` in the same round trip. `path` NULL: the one of before, if there
 * is one. 0; CONNECTION_ONLY: the server is older, or resumes leases first. A failure to connect leaves w->fd < 0.
 */
int connection_attach(struct weightd *w, const char *path, struct client_call *call);

/* A second connection to where `w` is connected. The sentence of a failure is on `w`. */
int connection_twin(struct weightd *w, struct weightd **ret);

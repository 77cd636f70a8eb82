/*
 * A socket to a server, and the handshake on it
 */
#pragma once

#include "libclient/connection/client.h"
#include "libclient/connection/restart.h"

#define DIAL_TIMEOUT_MS 5000

/* Connects to w->path. `wait`: 5 s, for a server that is too busy to take us; else -EAGAIN. */
int dial_open(struct weightd *w, bool wait);

/*
 * Sends hello, and stores the server's identity. `p` has the tick; may be NULL. A failure leaves the connection open.
 */
int dial_greet(struct weightd *w, int timeout_ms, const struct restart_patience *p);
/* The two halves of it: sends hello without waiting; receives the answer, which is there. */
int dial_greet_send(struct weightd *w);
int dial_greet_receive(struct weightd *w);

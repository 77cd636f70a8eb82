/*
 * A socket to a server, and the handshake on it
 */
#pragma once

#include "libclient/connection/client.h"
#include "libclient/connection/restart.h"

struct client_call;

#define DIAL_TIMEOUT_MS 5000

/* Connects to w->path. `wait`: 5 s, for a server that is too busy to take us; else -EAGAIN. */
int dial_open(struct weightd *w, bool wait);

/*
 * Sends hello, and stores the server's identity. `p` has the tick; may be NULL. A failure leaves the connection open.
 */
int dial_greet(struct weightd *w, int timeout_ms, const struct restart_patience *p);
/*
 * The same with the attach of `call`, in one request. A failure without the server's hello closes the connection: -ENOTCONN
 * without a reply, if the server is older, or has ended.
 */
int dial_attach(struct weightd *w, struct client_call *call);
/* The two halves of dial_greet(): sends hello without waiting; receives the answer, which is there. */
int dial_greet_send(struct weightd *w);
int dial_greet_receive(struct weightd *w);

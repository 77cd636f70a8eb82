/*
 * Calls
 *
 * One request to the server and its reply, across a restart of the server if possible.
 */
#pragma once

#include "libclient/connection/ask.h"

/*
 * Like client_ask(), but repeats the request if the server is lost and returns. If it does not return, or is silent,
 * the connection is closed: -ENOTCONN, -ETIMEDOUT.
 */
int client_call_run(struct weightd *w, struct client_call *call);

/* An again() of what cannot be asked twice. `subject` is the name of a buffer. */
int client_not_again(struct weightd *w, struct client_call *call);

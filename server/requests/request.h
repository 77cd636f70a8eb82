/*
 * Requests
 *
 * What a client may ask, one handler for each. A handler answers through its session, now or later.
 */
#pragma once

struct session;
struct wire_request;

/*
 * Handles a decoded request; the descriptors stay the caller's. Negative for a request that breaks the
 * order of the protocol, which costs the connection.
 */
int request_handle(struct session *s, const struct wire_request *m, const int *fds);

/*
 * The owner that a caller demands of a buffer
 */
#pragma once

#include <stdint.h>

#include "libclient/connection/ask.h"

/*
 * Fails if the caller demands an owner (`owner` not NULL) and the server cannot check it: -EOPNOTSUPP; -ECHILD,
 * -ENOTCONN.
 */
int owner_check_server(struct weightd *w, const uint32_t *owner);

/* An again() of a request that names an owner: a restart may have been that of another release. -ECONNABORTED. */
int owner_again(struct weightd *w, struct client_call *call);

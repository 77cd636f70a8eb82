/*
 * Restarts
 *
 * A server that survives its own death is waited for, and what this process had of it is taken up again.
 */
#pragma once

#include "libclient/connection/client.h"

struct restart_patience {
	bool has_lost; /* the connection; until_ns counts from then on */
	uint64_t until_ns; /* how long to wait for the server; UINT64_MAX: for ever */
	uint64_t deadline_ns; /* of the call that found it gone; UINT64_MAX: none */
	int (*tick)(void *userdata); /* as of the call */
	void *userdata;
};

/* When a restart that begins now has taken too long. */
uint64_t restart_until(const struct weightd *w);

/*
 * Connects anew, for which the server may have to be started first, and takes up leases and writers. 0;
 * -ENOTCONN: it did not come back; -ETIMEDOUT: the call's deadline passed; -ECANCELED; or the server's
 * refusal.
 */
int restart_wait(struct weightd *w, const struct restart_patience *p);

/* On a new connection: leases and writers again. An error with w->fd < 0: the connection is lost anew. */
int restart_take_up(struct weightd *w, const struct restart_patience *p);

/* After connecting to another server, or in another process: what there was is not of this connection. */
void restart_forget(struct weightd *w);

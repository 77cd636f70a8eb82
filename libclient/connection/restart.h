/*
 * Restarts
 *
 * Waits for a server that survives its own death, and resumes what this process held there.
 */
#pragma once

#include "libclient/connection/client.h"

struct restart_patience {
	bool has_lost; /* the connection; until_ns counts from then on */
	uint64_t until_ns; /* how long to wait for the server; UINT64_MAX: for ever */
	uint64_t deadline_ns; /* deadline of the call that lost the server; UINT64_MAX: none */
	int (*tick)(void *userdata); /* as of the call */
	void *userdata;
};

/* When a restart that begins now has taken too long. */
uint64_t restart_until(const struct weightd *w);

/*
 * Connects again, for which the server may have to start first, and resumes leases, writers and jobs. 0; -ENOTCONN: it did
 * not return; -ETIMEDOUT: the call's deadline passed; -ECANCELED; or the server's refusal.
 */
int restart_wait(struct weightd *w, const struct restart_patience *p);

/*
 * One attempt at the same that does not wait: the next one continues a connection whose server has not answered yet.
 * -ENOTCONN: the server is not back.
 */
int restart_try(struct weightd *w);

/*
 * Outside of a call, without waiting: finds that the server has ended, and then tries the same. 0: connected. -ENOTCONN: the server
 * is not back, or does not survive.
 */
int restart_look(struct weightd *w);

/* On a new connection: leases, writers and jobs again. An error with w->fd < 0: the connection is lost anew. */
int restart_take_up(struct weightd *w, const struct restart_patience *p);

/* After connecting to another server, or in another process: what there was is not of this connection. */
void restart_forget(struct weightd *w);

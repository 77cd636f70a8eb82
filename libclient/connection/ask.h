/*
 * One request and its reply, on a live connection
 */
#pragma once

#include "libclient/connection/client.h"

#define CALL_TIMEOUT_MS 30000 /* default time limit for replies that wait for no event */
#define CALL_TICK_MS 50
#define CALL_SPIN_NS 50000

struct client_call {
	enum wire_op op;
	/*
	 * WAIT, PAUSE and EVENTS: the caller's timeout, a restart included, which is copied into the request.
	 * Others: time for each reply; 0: CALL_TIMEOUT_MS. < 0: for ever.
	 */
	int timeout_ms;
	uint64_t deadline_ns; /* other operations: the caller's deadline for a restart; 0: none */
	const int *fds; /* to send, borrowed: as many as the operation takes */
	/* Asked every CALL_TICK_MS while waiting; < 0 gives up: the connection is closed, -ECANCELED. */
	int (*tick)(void *userdata);
	void *userdata;
	/*
	 * Called on a new connection, before the request is sent on it: 0 sends it; 1: it is done, and
	 * `reply` has the result; an error ends the call. NULL: the request can be repeated.
	 */
	int (*again)(struct weightd *w, struct client_call *call);
	void *subject; /* argument of again() */
	bool sent; /* once at least: the server may have done it */
	struct wire_request request;
	struct wire_reply reply;
	int reply_fds[WIRE_FDS_MAX]; /* the caller's afterwards; -1 where there is none */
};

/*
 * Sends the request and waits for its reply. An error reply becomes its code, its text the sentence of the connection. A
 * lost connection stays lost, with w->fd < 0: -ENOTCONN, -ETIMEDOUT, -EBADMSG. `reply` has what was received, its opcode
 * is 0 without a reply.
 */
int client_ask(struct weightd *w, struct client_call *call);
/* The two halves of it. The first does not wait; the second waits for the reply. */
int client_ask_send(struct weightd *w, struct client_call *call);
int client_ask_receive(struct weightd *w, struct client_call *call);
void client_call_deinit(struct client_call *call);

/* Marks all reply descriptors as absent. Needed for a call that may end before client_ask(). */
void client_call_init_fds(struct client_call *call);
/* The field of the request with the time that the server may wait, of operations that wait for something; else NULL. */
int64_t *client_call_patience_ms(struct client_call *call);
/* Closes the connection for `r`, 0: the server closed it. Sets the sentence and returns its code. */
int client_lost(struct weightd *w, int r);

/*
 * Ends a lease or writer, for objects that are going away: nothing can be done about a failure. What
 * ended with its connection has ended. 0 is none.
 */
void client_end(struct weightd *w, enum wire_op op, uint64_t id);

/*
 * The connection, as the rest of the library sees it
 */
#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "ipc/codec.h"
#include "libclient/sentence.h"

#define CLIENT_TIMEOUT_MS 30000 /* for an answer that the server owes at once */
#define CLIENT_TICK_MS 50
#define CLIENT_SPIN_NS 50000

struct weightd {
	unsigned n_refs; /* the caller's, and one of each buffer and writer */
	int fd; /* -1: not connected */
	pid_t owner; /* the process that connected; a child may not use the connection */
	uint64_t serial;
	char *path;
	struct sentence sentence;
};

struct sentence *client_sentence(struct weightd *w);

/* A second connection to where `w` is connected. The sentence of a failure is on `w`. */
int client_twin(struct weightd *w, struct weightd **ret);

struct weightd *client_ref(struct weightd *w);
void client_unref(struct weightd *w);
static inline void client_unrefp(struct weightd **w)
{
	client_unref(*w);
}

struct client_call {
	enum wire_op op;
	int timeout_ms; /* < 0: for ever; 0: CLIENT_TIMEOUT_MS */
	const int *fds; /* to send, borrowed: as many as the operation takes */
	/* Asked every CLIENT_TICK_MS while waiting; < 0 gives up: the connection is closed, -ECANCELED. */
	int (*tick)(void *userdata);
	void *userdata;
	struct wire_request request;
	struct wire_reply reply;
	int reply_fds[WIRE_FDS_MAX]; /* the caller's afterwards; -1 where there is none */
};

/*
 * Sends the request and waits for its reply. An error reply becomes its code, its text the sentence of
 * the connection. When the server is gone or silent the connection is closed: -ENOTCONN, -ETIMEDOUT.
 */
int client_call(struct weightd *w, struct client_call *call);
void client_call_deinit(struct client_call *call);

/*
 * Copies a struct of options whose first member is its size, as the caller knows it: shorter than ours,
 * and the rest is zero; longer, and what we do not know must be. -EINVAL below `min`; -E2BIG.
 */
int client_copy_options(struct weightd *w, const void *options, size_t min, void *ret, size_t size);

/* Copies buffer name and device (NULL: "host") into request fields; sets the sentence on failure. */
int client_put_target(struct weightd *w, const char *name, const char *device,
		      char name_field[WIRE_NAME_SIZE], char device_field[WIRE_DEVICE_SIZE]);

/* Ends a lease or writer, for objects that are going away: nothing can be done about a failure. */
void client_end(struct weightd *w, enum wire_op op, uint64_t id);

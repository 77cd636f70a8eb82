/*
 * The connections of an attacker
 *
 * They speak the protocol of ipc/wire.h without libweightd, and misbehave. At most two threads own them, half each. A
 * connection that the server closes, or refuses, is made again at once.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/un.h>

#include "ipc/channel.h"
#include "ipc/codec.h"

#define CROWD_THREADS_MAX 2

struct crowd;
struct squad;

/* A connection. */
struct member {
	struct squad *squad;
	int fd; /* -1: to be made again */
	uint32_t index;
	uint64_t serial; /* of the last request */
	bool greeted;
	bool seen; /* the server has answered or refused it once */
	unsigned step; /* the attack's */
	uint64_t id; /* writer, lease or job, for the attack */
	uint64_t version; /* likewise */
};

/* One kind of attack. A member acts again after the reply to its request. */
struct attack {
	const char *name;
	void (*prepare)(struct crowd *c); /* before there are members; or NULL */
	void (*act)(struct member *m);
	/* Takes from `packet` the descriptors that it sets to -1; or NULL. */
	void (*answered)(struct member *m, const struct wire_reply *reply,
			 struct channel_packet *packet);
	bool greets_not; /* its members begin without a hello */
	bool reads_not; /* its members act whenever the socket takes a packet */
};

/* The members of one thread. */
struct squad {
	struct crowd *crowd;
	int epoll_fd;
	struct member *members;
	uint32_t n_members;
	uint32_t n_seen;
	uint32_t n_closed; /* members without a connection */
	uint32_t cursor; /* where the search for these goes on */
	bool ready; /* all were seen */
	uint64_t n_sent, n_answered, n_refused, n_connected;
};

struct crowd {
	const struct attack *attack;
	struct sockaddr_un address;
	const char *target; /* a buffer of another user, which all may read */
	struct squad squads[CROWD_THREADS_MAX];
	unsigned n_squads;
	atomic_bool stop;
	atomic_uint n_ready; /* squads */
	uint32_t n_buffers; /* to have before attacks that are worse with many */
	int layout_fd; /* the attack's */
};

/* The caller sets `attack`, `target` and `n_buffers` before. Fails the program. */
void crowd_init(struct crowd *c, const char *path, uint32_t n_members);
void crowd_deinit(struct crowd *c);

/*
 * Attacks with one squad until `stop`. One thread has `control_fd` >= 0: it writes "ready" to standard output once all
 * members of all squads were seen, and ends the attack when control_fd reads as ended.
 */
void squad_run(struct squad *s, int control_fd);

/* Sends a request; without effect where the member has lost its connection meanwhile. */
void member_send(struct member *m, enum wire_op op, struct wire_request *request, const int *fds,
		 unsigned n_fds);

/* Sends any bytes. False: they were not sent. */
bool member_send_raw(struct member *m, const void *data, size_t size, const int *fds,
		     unsigned n_fds);

/* Closes the connection, which is made again. */
void member_leave(struct member *m);

/* Connects, with a hello; then sends a request and waits for the reply, whose descriptors it closes. For prepare(). */
int crowd_connect(struct crowd *c);
int crowd_ask(int fd, enum wire_op op, struct wire_request *request, const int *fds, unsigned n_fds,
	      struct wire_reply *ret);

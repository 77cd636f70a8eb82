/*
 * A client of the tracer: its rows and spans, and its requests, each an object of JSON in one packet
 */
#pragma once

#include "bpf/base/collector.h"
#include "bpf/base/process.h"
#include "bpf/closer.h"
#include "bpf/tcp/row.h"
#include "ipc/base/list.h"
#include "server/base/loop.h"

#define CLIENTS_MAX 256
#define CLIENTS_PER_USER_MAX                                                                       \
	64 /* each rank of a job with NCCL's plug-in is one; not for root and the tracer's own user */
#define ROWS_MAX 1024 /* per client: all rows of all clients fit into the meter */
#define SPANS_MAX ROWS_MAX /* the same: a sync without a row has nothing to span */

struct tracer;

/* Between "begin" and "end" of a sync. */
struct span {
	struct list link; /* client::spans */
	char sync[ROW_TEXT_SIZE];
	uint64_t began_ns;
};

struct client {
	struct list link; /* tracer::clients; tracer::leaving */
	struct tracer *tracer;
	struct source source;
	uint64_t number;
	uid_t uid;
	pid_t pid; /* 0: unknown here */
	uint64_t began_ticks; /* start time of that process, see process.h */
	char comm[COMM_SIZE]; /* as it was when it connected */
	struct list rows; /* struct row */
	struct list spans; /* struct span */
	struct list watches; /* struct watch */
	struct list messages; /* struct messages */
	unsigned n_rows, n_spans, n_watches, n_messages;
	unsigned n_messages_of_all; /* the part of n_messages that counts for rows of all clients */
	struct list queue; /* struct packet, what it has not read */
	unsigned n_queue;
	uint64_t read_ns; /* when the client read one of these, or there was none */
	uint64_t cut; /* rows of this answer that had no room */
	uint64_t lost; /* packets that the client was too slow for, not reported yet */
	uint64_t lost_in_ring; /* events that the meter had no room for, not reported yet */
	uint64_t lost_events[N_EVENT_SOURCES]; /* events that had no room, not reported yet */
	bool follows, observes; /* its own rows, or those of all clients */
	bool is_behind; /* it has not received all that it follows */
	uint64_t events_since_ns; /* when the second began in which it sent n_events events */
	unsigned n_events;
	struct closing closing; /* the descriptor of its request, and in the end its connection */
	bool is_closing; /* the answer ends after that, and no request is read before */
	bool is_gone; /* it is freed after that */
	json_t *end; /* the last packet of that answer */
};

/*
 * Takes ownership of `fd`, always. A client beyond the limits receives an error, and no other client notices.
 */
int client_add(struct tracer *t, int fd);
/* Counts as a client until its connection is closed. */
void client_free(struct client *c);

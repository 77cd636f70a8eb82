/*
 * A client of the tracer: its rows and spans, and what it asks, JSON objects, one a packet
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
	64 /* each rank of a job with NCCL's plug-in is one; but of root, and of the tracer's own */
#define ROWS_MAX 1024 /* of one client: all rows of all of them fit into the meter */
#define SPANS_MAX ROWS_MAX /* likewise: a sync of which there is no row has nothing to span */

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
	pid_t pid; /* 0: not known here */
	uint64_t began_ticks; /* of that process, see process.h */
	char comm[COMM_SIZE]; /* as it was when it connected */
	struct list rows; /* struct row */
	struct list spans; /* struct span */
	struct list watches; /* struct watch */
	struct list messages; /* struct messages */
	unsigned n_rows, n_spans, n_watches, n_messages;
	unsigned n_messages_of_all; /* of these, of the rows of all clients */
	struct list queue; /* struct packet, what it has not read */
	unsigned n_queue;
	uint64_t read_ns; /* when it took one of these, or there was none */
	uint64_t cut; /* rows of the answer that is made now, for which there was no room */
	uint64_t lost; /* packets that it was too slow for, not told yet */
	uint64_t lost_in_ring; /* events that the meter had no room for, likewise */
	uint64_t lost_events[N_EVENT_SOURCES]; /* that there was no room for, likewise */
	bool follows, observes; /* its own rows, or those of all clients */
	bool is_behind; /* it was not told all that it follows */
	uint64_t events_since_ns; /* when the second began in which it told of n_events acts */
	unsigned n_events;
	struct closing closing; /* what came with its request, and in the end its connection */
	bool is_closing; /* it is answered then, and not read before */
	bool is_gone; /* likewise it is freed */
	json_t *end; /* of that answer */
};

/* Takes `fd`, always. Of clients that are too many it tells them, and nobody else. */
int client_add(struct tracer *t, int fd);
/* Counts as a client until its connection is closed. */
void client_free(struct client *c);

/* Takes `fd`, always. Of clients that are too many it tells them, and nobody else. */
int client_add(struct tracer *t, int fd);
/* Counts as a client until its connection is closed. */
void client_free(struct client *c);

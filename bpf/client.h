/*
 * A client of the tracer: its rows and spans, and what it asks, JSON objects, one a packet
 */
#pragma once

#include "bpf/base/loop.h"
#include "bpf/base/process.h"
#include "bpf/closer.h"
#include "bpf/tcp/row.h"
#include "ipc/base/list.h"

#define CLIENTS_MAX 256
#define CLIENTS_PER_USER_MAX                                                                       \
	64 /* each rank of a job with NCCL's plug-in is one; but of root, and of the tracer's own */
#define ROWS_MAX 1024 /* of one client: all rows of all of them fit into the meter */
#define SPANS_MAX ROWS_MAX /* likewise: a sync of which there is no row has nothing to span */

#define QUEUE_MAX 8192 /* packets that a client has not read */

struct tracer;

enum event_source {
	EVENTS_OF_PROBES,
	EVENTS_OF_WEIGHTD,
	EVENTS_OF_DESCRIPTORS,
	N_EVENT_SOURCES,
};

/* As a gap names them. */
extern const char *const event_source_names[N_EVENT_SOURCES];

/* Between "begin" and "end" of a sync. */
struct span {
	struct list link; /* client::spans */
	char sync[ROW_TEXT_SIZE];
	uint64_t began_ns;
};

struct client {
	struct list link; /* tracer::clients; tracer::leaving */
	struct tracer *tracer;
	struct waiter waiter;
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

/* Takes `json`, and counts it as lost where more packets are waiting already, or memory ran out. */
void client_send(struct client *c, json_t *json, unsigned queue_max);

/* A row of an answer, which is cut where there is no room: its last packet says by how many. */
void client_answer(struct client *c, json_t *json);
/* The last, for which there is room always: it is waited for. */
void client_answer_end(struct client *c, json_t *json);

/* NULL: it has none of that number. */
struct row *client_own_row(const struct client *c, uint32_t number);
/*
 * What a row of it has as of the last mark, and, where its sync has begun, on what it stalls: before it is told. 0, or
 * negative errno.
 */
int client_look(const struct client *c, struct row *row, struct reading *ret);
/* What it has as of the last mark is in its account then. */
void client_free_row(struct client *c, struct row *row);
/* While its rows are there still: who observes is told what is in them. */
void client_free_span(struct client *c, struct span *span);

/* Of whichever client. */
struct row *client_find_row(const struct tracer *t, uint32_t number, struct client **ret_owner);
struct span *client_find_span(const struct client *c, const char *sync);

/*
 * A client of the tracer: its rows and spans, and what it asks, JSON objects, one a packet
 */
#pragma once

#include "bpf/loop.h"
#include "bpf/meter.h"
#include "ipc/base/list.h"

#define CLIENTS_MAX 64
#define ROWS_MAX 1024 /* of one client: all rows of all of them fit into the meter */
#define SPANS_MAX ROWS_MAX /* likewise: a sync of which there is no row has nothing to span */

struct tracer;

struct client {
	struct list link; /* tracer::clients */
	struct tracer *tracer;
	struct waiter waiter;
	uid_t uid;
	struct list rows; /* struct row */
	struct list spans; /* struct span */
	struct list watches; /* struct watch */
	unsigned n_rows, n_spans;
	struct list queue; /* struct packet, what it has not read */
	unsigned n_queue;
	uint64_t lost; /* packets that it was too slow for, not told yet */
	bool follows;
	bool is_behind; /* it was not told all that it follows */
};

/* Takes `fd`, always. */
int client_add(struct tracer *t, int fd);
void client_free(struct client *c);

/* To the one whose row it is of, if it follows. */
void client_take_event(struct tracer *t, const struct event *e);
/* To all that follow: what their rows in a span carried so far, and how many events were lost. */
void client_tell_all(struct tracer *t);

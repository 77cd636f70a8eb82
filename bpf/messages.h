/*
 * Messages mode: for some seconds the calls on the sockets of a sync are counted, too
 */
#pragma once

#include "bpf/client.h"
#include "bpf/tcp/row.h"
#include "ipc/base/list.h"
#include "server/base/loop.h"

#define MESSAGES_SECONDS_MAX 3600
/* per client; not for root and the tracer's own user */
#define MESSAGES_MAX 128

struct messages {
	struct list link; /* client::messages */
	struct client *client;
	struct timer timer; /* ends it */
	char sync[ROW_TEXT_SIZE];
	bool of_all; /* rows of all clients; else of its own */
};

/* Finds the one of a sync. NULL: there is none. */
struct messages *messages_find(const struct client *c, const char *sync, bool of_all);
/*
 * Counts from 0, even while these calls are counted for another client. -ENOENT: the sync has no row. -EOPNOTSUPP:
 * the kernel has no tracepoints of calls. -EDQUOT: the client has as many as it may.
 */
int messages_begin(struct client *c, const char *sync, bool of_all, unsigned seconds);
/* The counts stay with the rows. Rows that other clients count, too, go on. Takes NULL. */
void messages_free(struct messages *m);
/* The row is new. */
int messages_take_row(struct client *c, struct row *row);
/* Ends counting, for all rows of a sync or for one row that is freed. */
void messages_end_row(struct meter *meter, struct row *row);

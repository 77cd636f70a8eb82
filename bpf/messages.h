/*
 * Messages mode: for some seconds the calls on the sockets of a sync are counted, too
 */
#pragma once

#include "bpf/client.h"
#include "bpf/tcp/row.h"
#include "ipc/base/list.h"
#include "server/base/loop.h"

#define MESSAGES_SECONDS_MAX 3600
/* Of one client, but of root's and the tracer's own. */
#define MESSAGES_MAX 128

struct messages {
	struct list link; /* client::messages */
	struct client *client;
	struct timer timer; /* of its end */
	char sync[ROW_TEXT_SIZE];
	bool of_all; /* rows of all clients; else of its own */
};

/* Those of a sync, of which there may be none. */
struct messages *messages_find(const struct client *c, const char *sync, bool of_all);
/*
 * Counts from 0, also where it did already, for whomever. -ENOENT: the sync has no row. -EOPNOTSUPP: the kernel does
 * not tell of calls. -EDQUOT: it has as many as it may.
 */
int messages_begin(struct client *c, const char *sync, bool of_all, unsigned seconds);
/* What was counted remains with the rows. Those that others want to know of go on. Takes NULL. */
void messages_free(struct messages *m);
/* The row is new. */
int messages_take_row(struct client *c, struct row *row);
/* It is over, as it is for all rows of its sync, or for the row alone, which goes. */
void messages_end_row(struct meter *meter, struct row *row);

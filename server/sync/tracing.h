/*
 * Tracing
 *
 * What this node has weightd-trace(8) count, if there is one. Nobody waits for it: requests are queued, and go one at a
 * time. Where nobody listens they are forgotten; it is looked for again when something begins, and, if it went amid
 * something, once a second until that is over, and less often where it hangs up at once.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "server/base/loop.h"

struct tracing_events {
	/* It was connected to, and knows nothing. */
	void (*on_connect)(void *userdata);
	/* The same, and this sync, which it was told had begun, is not over. Nothing else is under way. */
	void (*on_missing)(void *userdata, const char *sync);
	/* Takes its answer to an "end". Both are borrowed. */
	void (*on_rows)(void *userdata, const json_t *request, const json_t *rows);
};

struct tracing {
	struct loop *loop;
	const char *path; /* its socket; NULL: it is never asked */
	const struct tracing_events *events;
	void *userdata;
	struct source source; /* its fd is -1 while nobody is connected */
	struct list queue; /* struct request; the first is under way if `is_asked` */
	unsigned n_queue;
	bool is_asked;
	bool is_lost; /* it was there, and went */
	bool is_heard; /* it has answered since it was connected to */
	bool is_loss_told; /* nothing has been heard since */
	json_t *begun; /* {sync: whether it knows} of what is not forgotten */
	struct timer retry;
	uint64_t retry_ns; /* until it is looked for again: longer and longer, where it does not answer */
	struct timer patience;
	json_t *rows; /* the answer so far */
	int last_error; /* the last error of connecting, which is logged once */
};

void tracing_init(struct tracing *t, struct loop *loop, const char *path,
		  const struct tracing_events *events, void *userdata);
void tracing_deinit(struct tracing *t);

/* "begin" and "tell" connect, where nobody is. `fd` is duplicated; -1: none. What the request has as "note" is not for weightd-trace. */
void tracing_ask(struct tracing *t, const json_t *request, int fd);
/* Forgets what has to do with a sync, and shuts the connections of it that wait to be told of: their process is gone. */
void tracing_drop(struct tracing *t, const char *sync);

static inline bool tracing_is_on(const struct tracing *t)
{
	return t->source.fd >= 0;
}

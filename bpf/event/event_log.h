/*
 * What was told, for who asks later: the last of it, the oldest first
 *
 * Whoever has most of it makes room, so that nobody's is pushed out by another who tells more.
 */
#pragma once

#include <jansson.h>

#include "bpf/base/question.h"
#include "ipc/base/list.h"

struct event_log {
	struct list lines; /* struct line */
	struct list owners; /* struct owner */
	unsigned n, n_max;
};

void event_log_init(struct event_log *log, unsigned n_max);
void event_log_deinit(struct event_log *log);
/*
 * A copy, for which the oldest goes of the user who has most once there are too many. `uid` is whose it is; null or
 * none: nobody knows, and all of these are one user's. Without memory there is none.
 */
void event_log_add(struct event_log *log, const json_t *uid, const json_t *o);
/* Adds all of it to the answer, with "kind" `kind`: what clients receive unasked comes between. */
void event_log_answer(const struct event_log *log, struct answer *a, const char *kind);

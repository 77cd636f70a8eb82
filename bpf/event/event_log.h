/*
 * A log of what was sent, for clients that ask later: the last lines, the oldest first
 *
 * The user that has most lines loses its oldest one when the log is full, so that no user pushes out the lines of
 * another.
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
 * Adds a copy. If the log is full, the user that has most lines loses its oldest one. `uid` is the owner; null or
 * none means unknown, and counts as one user. Adds nothing if memory runs out.
 */
void event_log_add(struct event_log *log, const json_t *uid, const json_t *o);
/* Adds all lines to the answer, with "kind" `kind`, which distinguishes them from unsolicited packets. */
void event_log_answer(const struct event_log *log, struct answer *a, const char *kind);

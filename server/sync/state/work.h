/*
 * Work
 *
 * A process that works for a sync or a replica: a source, a sink, an engine. It ends with the
 * object that it works for.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/list.h"
#include "server/sync/base/limits.h"
#include "server/sync/state/env.h"

struct agent;

struct work {
	struct job *job; /* NULL: none runs */
	enum job_kind kind; /* the job's */
	struct {
		struct list link; /* agent::trace_spans */
		char sync[SYNC_ID_SIZE]; /* "": it is no engine, or no longer traced */
		uint64_t version;
		unsigned n_sockets; /* sockets reported */
		bool is_resumed; /* weightd-trace did not see all of it */
	} trace_span; /* owned by trace_span.h */
	void (*on_message)(struct agent *a, struct work *w, const json_t *message, int *fds,
			   unsigned n_fds);
	void (*on_end)(struct agent *a, struct work *w, const char *how);
};

/* `buffer`: the same as in struct env. */
int work_start(struct agent *a, struct work *w, enum job_kind kind, const char *buffer,
	       char why[WHY_SIZE]);
/* Steals `message`. */
void work_tell(struct agent *a, struct work *w, json_t *message, const int *fds, unsigned n_fds);
void work_end(struct agent *a, struct work *w);

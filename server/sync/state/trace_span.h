/*
 * Trace spans
 *
 * What weightd-trace(8) is told of an engine while it runs: for which sync it is, when it begins and ends, and of each of
 * its connections; and what it says of these: bytes, as a third who was not asked to carry them counts them. And which
 * phases a sync went through, for who looks at all of it on one timeline. It may not be there, and nothing ever waits for
 * it: what it says comes when all else may be over.
 */
#pragma once

#include "server/sync/state/agent_state.h"

/* An engine was started. */
void trace_span_begin(struct agent *a, struct work *engine, const char *sync,
		      struct version_id version_id);
/* weightd-trace came back, and knows nothing of this sync. It is told what still goes on, and that not all of it is known. */
void trace_span_resume(struct agent *a, const char *sync);
/* False: what it says is of something else. */
bool trace_span_on_job(struct agent *a, struct work *w, const json_t *message, const int *fds,
		       unsigned n_fds);
/*
 * It is done, as `done` says, and what came is told to `coordinator`, too. All came from `from`; NULL: nothing did; "":
 * from whom it came and to whom it went is in `done`.
 */
void trace_span_end(struct agent *a, struct work *engine, unsigned coordinator, const char *from,
		    const json_t *done);
/* It is not, and ends. Does nothing where there is no span. */
void trace_span_drop(struct agent *a, struct work *engine);

/* A sync was in this phase, of those of metrics.c, and is not any more; times are CLOCK_MONOTONIC. */
void trace_span_phase(struct agent *a, const char *sync, const char *role, const char *phase,
		      uint64_t began_ns, uint64_t ended_ns);

/* "traced", of a member. */
void trace_span_on_message(struct agent *a, unsigned peer, const json_t *message);
/* As of agent_on_traced(). */
void trace_span_on_rows(struct agent *a, const json_t *request, const json_t *rows);

/*
 * Trace spans
 *
 * Registers running engines with weightd-trace(8): the sync, its begin and end, and each
 * connection. weightd-trace returns byte counts, as an independent observer. It also receives the
 * phases of a sync, for timelines. It may be absent, and nothing ever waits for it: its counts may
 * arrive after everything else has ended.
 */
#pragma once

#include "server/sync/state/agent_state.h"

/* An engine was started. */
void trace_span_begin(struct agent *a, struct work *engine, const char *sync,
		      struct version_id version_id);
/*
 * weightd-trace is available again, and has lost this sync. Registers the running engines again,
 * with a mark that their counts are incomplete.
 */
void trace_span_resume(struct agent *a, const char *sync);
/* False: the message is about something else. */
bool trace_span_on_job(struct agent *a, struct work *w, const json_t *message, const int *fds,
		       unsigned n_fds);
/*
 * The engine has finished, with `done`. The received bytes are also sent to `coordinator`. All
 * bytes are from `from`; NULL: none were received; "": `done` has the senders and receivers.
 */
void trace_span_end(struct agent *a, struct work *engine, unsigned coordinator, const char *from,
		    const json_t *done);
/* The engine ends without a result. Does nothing without a span. */
void trace_span_drop(struct agent *a, struct work *engine);

/* A sync has left this phase, one of those in phase_time.c; times are CLOCK_MONOTONIC. */
void trace_span_phase(struct agent *a, const char *sync, const char *role, const char *phase,
		      uint64_t began_ns, uint64_t ended_ns);

/* "traced", from a member. */
void trace_span_on_message(struct agent *a, unsigned peer, const json_t *message);
/* The same as agent_on_traced(). */
void trace_span_on_rows(struct agent *a, const json_t *request, const json_t *rows);

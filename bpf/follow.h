/*
 * What is told that nobody asked for: events, and rows between the begin and the end of a sync
 *
 * Who follows hears of its own rows, who observes of those of all clients.
 */
#pragma once

#include "bpf/client.h"

/* From now on: `flag` is client::follows or client::observes of `c`. */
void follow_begin(struct client *c, bool *flag);

/* Sends events of connections, some or all that there are: once its row is gone nobody can receive one any more. */
void follow_take_tcp_events(struct tracer *t, bool all);
/* What rows in a span carried so far, and how many events were lost. */
void follow_send_all(struct tracer *t);
/* To one that had much to read. */
void follow_catch_up(struct client *c);

/* To those that observe; takes `act`, see act.h. */
void follow_send_event(struct tracer *t, json_t *event);
/* To those that observe: there was no room for so many. */
void follow_count_lost(struct tracer *t, uint64_t n, enum event_source source);
/* To those that observe: of what was done with that file since then nobody knows how much it was. */
void follow_send_unseen(struct tracer *t, const char *path, uint64_t since_ns,
			enum event_source source);
/* To those that observe. */
void follow_span_begins(struct client *owner, const struct span *span);
/* Likewise, and what its rows had at the last mark. */
void follow_span_ends(struct client *owner, const struct span *span);

/* What is told says whose it is. NULL where memory ran out. */
json_t *follow_row_json(const struct client *owner, const struct row *row, const char *kind,
			const struct reading *now);
json_t *follow_span_json(const struct client *owner, const struct span *span, const char *kind,
			 uint64_t ns);

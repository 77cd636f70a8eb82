/*
 * Unsolicited packets: events, and rows between the begin and the end of a sync
 *
 * A follower receives those of its own rows, an observer those of all clients.
 */
#pragma once

#include "bpf/client.h"

/* From now on: `flag` is client::follows or client::observes of `c`. */
void follow_begin(struct client *c, bool *flag);

/*
 * Sends events of connections, some or all that there are: once a row is freed its events have no receiver any more.
 */
void follow_take_tcp_events(struct tracer *t, bool all);
/* Sends what rows in a span carried so far, and how many events were lost. */
void follow_send_all(struct tracer *t);
/* To one that had much to read. */
void follow_catch_up(struct client *c);

/* Sends an event to observers; takes `event`, see bpf/event/event.h. */
void follow_send_event(struct tracer *t, json_t *event);
/* Reports to observers that so many events had no room. */
void follow_count_lost(struct tracer *t, uint64_t n, enum event_source source);
/* Reports to observers that calls into this file were not seen since then; how many is unknown. */
void follow_send_unseen(struct tracer *t, const char *path, uint64_t since_ns,
			enum event_source source);
/* Sends the begin of a span to observers. */
void follow_span_begins(struct client *owner, const struct span *span);
/* Sends its end to observers, with what its rows had at the last mark. */
void follow_span_ends(struct client *owner, const struct span *span);

/* Packets for observers name the client. NULL: memory ran out. */
json_t *follow_row_json(const struct client *owner, const struct row *row, const char *kind,
			const struct reading *now);
json_t *follow_span_json(const struct client *owner, const struct span *span, const char *kind,
			 uint64_t ns);

/*
 * What weightd-trace tells, as trace events of Chrome, which Perfetto reads as well
 *
 * A process is a peer of a client, a thread one of its roles: the span of each row is a slice there, in which each time
 * that nothing of it moved is one, its rate and its round trip are counters. Acts are slices of the process and the
 * thread that did them; an arrow leads from one to what has something from it. A port of an RDMA device is a process as
 * well, of what was in it a second. What several nodes recorded comes one node after another.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* Where a slice was put, and when: nanoseconds of the timeline. */
struct trace_slice {
	json_int_t process, thread;
	int64_t begin_ns, end_ns;
};

struct trace_events {
	FILE *f;
	bool comma; /* something stands before */
	json_int_t last_id; /* of processes and threads */
	json_t *ids; /* of these, by their names */
	json_t *lanes; /* of spans that are open */
	json_t *rows; /* what was heard last of each in an open span, by their numbers */
	json_t *stalls; /* of the same: [{cause, since_ns, until_ns}, ...] */
	json_t *ports; /* what was heard last of each, by their names */
	json_t *busy; /* until when a lane of acts is, by its name */
	json_t *exports; /* where acts are, by their numbers */
	json_t *gifts; /* likewise, by who gave and when: there is no act of that */
	json_int_t last_arrow;
	uint64_t last_ns; /* of what was heard */
	const char *node; /* NULL: there is but one */
	int64_t offset_ns; /* of its clock, to the timeline */
	/* Is told of each slice and the row that it is of; may be NULL. */
	void (*note)(void *context, const json_t *row, const struct trace_slice *slice);
	void *context;
};

void trace_events_begin(struct trace_events *c, FILE *f);
/* From here on it is of that node, whose name is one that JSON can hold. Spans that are open end here. */
void trace_events_begin_node(struct trace_events *c, const char *node, int64_t offset_ns);
/* May hold it. */
void trace_events_add(struct trace_events *c, json_t *packet);
/* An event of another kind. Takes it; NULL: memory ran out. */
void trace_events_put(struct trace_events *c, json_t *event);
/* Of the node; no packet follows of it. */
void trace_events_end_spans(struct trace_events *c);
/* Spans that are open end here. */
void trace_events_end(struct trace_events *c);

#define TRACE_EVENTS_NS_MAX ((uint64_t)INT64_MAX / 2) /* some 146 years */

/*
 * The first moment that a packet tells of, UINT64_MAX where it is none of a timeline. Returns 0 or -EINVAL: one of its
 * moments is missing or beyond TRACE_EVENTS_NS_MAX.
 */
int trace_events_first_ns(const json_t *packet, uint64_t *ret);

/*
 * Packets of weightd-trace as trace events of Chrome, which Perfetto reads as well
 *
 * A process is a peer of a client, and a thread one of its roles: the span of each row is a slice there, each stall
 * of the row is a slice inside it, and its rate and round trip are counters. Events are slices of their process and
 * thread; an arrow leads from an event to one that received something from it. A port of an RDMA device is a process
 * too, with its rates. Nodes of several recordings follow one another.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* The place of a slice, and its time: nanoseconds of the timeline. */
struct trace_slice {
	json_int_t process, thread;
	int64_t begin_ns, end_ns;
};

struct trace_events {
	FILE *f;
	bool comma; /* something stands before */
	json_int_t last_id; /* last id of a process or a thread */
	json_t *ids; /* ids of processes and threads, by their names */
	json_t *lanes; /* lanes of open spans */
	json_t *rows; /* the last packet of each row in an open span, by their numbers */
	json_t *stalls; /* stalls of the rows in `rows`: [{cause, since_ns, until_ns}, ...] */
	json_t *ports; /* the last packet of each, by their names */
	json_t *busy; /* until when a lane of acts is, by its name */
	json_t *exports; /* places of acts, by their numbers */
	json_t *gifts; /* likewise, by giver and time: those have no event */
	json_int_t last_arrow;
	uint64_t last_ns; /* time of the last packet */
	const char *node; /* NULL: there is but one */
	int64_t offset_ns; /* offset from its clock to the timeline */
	/* Called for each slice with its row; may be NULL. */
	void (*note)(void *context, const json_t *row, const struct trace_slice *slice);
	void *context;
};

void trace_events_begin(struct trace_events *c, FILE *f);
/* Starts the packets of that node. JSON must be able to hold its name. Ends open spans. */
void trace_events_begin_node(struct trace_events *c, const char *node, int64_t offset_ns);
/* May hold it. */
void trace_events_add(struct trace_events *c, json_t *packet);
/* An event of another kind. Takes it; NULL: memory ran out. */
void trace_events_put(struct trace_events *c, json_t *event);
/* Ends the spans of the node; no more of its packets follow. */
void trace_events_end_spans(struct trace_events *c);
/* Spans that are open end here. */
void trace_events_end(struct trace_events *c);

#define TRACE_EVENTS_NS_MAX ((uint64_t)INT64_MAX / 2) /* some 146 years */

/*
 * The earliest time in a packet, UINT64_MAX if it is none of a timeline. Returns 0 or -EINVAL: a time is missing or
 * beyond TRACE_EVENTS_NS_MAX.
 */
int trace_events_first_ns(const json_t *packet, uint64_t *ret);

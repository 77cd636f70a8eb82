/*
 * What weightd-trace tells, as trace events of Chrome, which Perfetto reads as well
 *
 * A process is a peer of a client, a thread one of its roles: the span of each row is a slice there, its rate and its
 * round trip are counters.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct chrome {
	FILE *f;
	bool comma; /* something stands before */
	json_int_t last_id; /* of processes and threads */
	json_t *ids; /* of these, by their names */
	json_t *lanes; /* of spans that are open */
	json_t *rows; /* what was heard last of each in an open span, by their numbers */
	uint64_t last_ns; /* of what was heard */
};

void chrome_begin(struct chrome *c, FILE *f);
/* May hold it. */
void chrome_add(struct chrome *c, json_t *packet);
/* Spans that are open end here. */
void chrome_end(struct chrome *c);

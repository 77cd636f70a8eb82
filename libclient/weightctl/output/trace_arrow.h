/*
 * Arrows of a timeline: from the slice of a sender to the slice of its receiver on another node
 *
 * A row of one node and a row of another are two ends of one link if both report the same connection in the same
 * sync; otherwise if each names the other's node as its peer, and no third one does.
 */
#pragma once

#include <jansson.h>

#include "libclient/weightctl/output/trace_event_json.h"

struct trace_arrow_end;

struct trace_arrows {
	const char *node; /* node of the packets that follow */
	struct trace_arrow_end *ends; /* rows of all nodes */
	size_t n_ends;
	json_t *by_row, *by_connection,
		*by_name; /* indexes of ends; of by_name -1 where there are two */
	json_int_t last_id;
	size_t n_backward; /* pairs of slices of which what was received was so before it was sent */
};

void trace_arrows_init(struct trace_arrows *a);
void trace_arrows_deinit(struct trace_arrows *a);
/* Records the connections of a row. Only for packets of the node. */
void trace_arrows_add(struct trace_arrows *a, const json_t *packet);
/* Records a slice of that row. */
void trace_arrows_note(struct trace_arrows *a, const json_t *row, const struct trace_slice *slice);
/* Once all slices are there. */
void trace_arrows_draw(struct trace_arrows *a, struct trace_events *c);

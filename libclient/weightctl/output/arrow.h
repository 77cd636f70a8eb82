/*
 * Arrows of a timeline: from a slice of who sends to the slice of who receives the same, at another node
 *
 * A row of one node and one of another are two ends of the same where both tell of one connection in the same sync; else
 * where each names the other's node as its peer, and no third one does so.
 */
#pragma once

#include <jansson.h>

#include "libclient/weightctl/output/chrome.h"

struct arrow_end;

struct arrows {
	const char *node; /* that is told of now */
	struct arrow_end *ends; /* rows of all nodes */
	size_t n_ends;
	json_t *by_row, *by_connection,
		*by_name; /* indexes of ends; of by_name -1 where there are two */
	json_int_t last_id;
	size_t n_backward; /* pairs of slices of which what was received was so before it was sent */
};

void arrows_init(struct arrows *a);
void arrows_deinit(struct arrows *a);
/* Which connections it is of. Of packets of the node only. */
void arrows_add(struct arrows *a, const json_t *packet);
/* Of the same. */
void arrows_note(struct arrows *a, const json_t *row, const struct chrome_slice *slice);
/* Once all slices are there. */
void arrows_draw(struct arrows *a, struct chrome *c);

/*
 * Totals of a peer: the sum of all rows with the same peer and role, freed ones included
 *
 * Totals only grow: whatever happens to spans, rows and clients, nothing is taken back, and nothing is added twice.
 */
#pragma once

#include "bpf/tcp/row.h"
#include "ipc/base/list.h"

#define PEER_TOTALS_MAX 512 /* that have a name */
#define PEER_OTHER "(other)" /* the peer of what is too many, or has a name that cannot be shown */

struct peer_totals {
	struct list link; /* peer_totals_list::list */
	char peer[ROW_TEXT_SIZE];
	bool is_payload;
	bool is_known; /* the meter sees what some of its rows carried */
	bool has_sent; /* so that something may have held that up */
	unsigned n_rows;
	uint64_t counter[N_COUNTERS];
	uint64_t limit_ns[N_LIMITS];
	uint64_t stalled_ns[N_LIMITS]; /* indexed by their cause */
	uint64_t opened, closed; /* connections */
	uint64_t lost; /* events */
};

struct peer_totals_list {
	struct list list; /* struct peer_totals */
	unsigned n;
	struct peer_totals others[2]; /* control and payload; in no list */
};

void peer_totals_list_init(struct peer_totals_list *a);
void peer_totals_list_deinit(struct peer_totals_list *a);

/* Adds a new row. */
void peer_totals_join(struct peer_totals_list *a, struct row *row);
/* Adds what the row has carried since the last time. */
void peer_totals_take(struct row *row, const struct reading *now);
/* Before the row is freed. */
void peer_totals_leave(struct peer_totals_list *a, struct row *row);

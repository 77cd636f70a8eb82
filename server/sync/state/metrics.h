/*
 * Metrics
 *
 * What this node counted since its agent began, for those who watch many nodes by machine. Each node counts what it
 * did itself, so that sums over all nodes count nothing twice. Names and meanings are in weightctl(1).
 */
#pragma once

#include <stdbool.h>

#include "server/sync/state/byte_count.h"

struct agent;

#define METRICS_PHASES 16 /* at least as many as either role has */

enum metrics_role {
	ROLE_PUBLISHER, /* coordinates, and is the source of the bytes */
	ROLE_MEMBER,
	N_ROLES,
};

enum sync_kind {
	KIND_PUSH,
	KIND_REPAIR,
	KIND_AVERAGE,
	KIND_RESHARD,
	N_KINDS,
};

enum metrics_result {
	RESULT_COMMITTED,
	RESULT_FAILED,
	RESULT_PLANNED,
	N_RESULTS,
};

/* Bytes of one peer. */
struct metrics_links {
	struct byte_count sent;
	struct byte_count received;
	uint64_t sent_traced; /* by weightd-trace; BYTE_COUNT_UNKNOWN: nothing ever was */
	uint64_t received_traced;
};

struct metrics {
	uint64_t started_ns; /* CLOCK_REALTIME */
	uint64_t n_ended[N_ROLES][N_KINDS][N_RESULTS];
	uint64_t phase_ns[N_ROLES][METRICS_PHASES];
	uint64_t n_epochs; /* that we coordinated */
	uint64_t n_broken; /* of them */
	uint64_t corrupt_bytes; /* that came here and were not those that were signed */
	struct metrics_links *links; /* a row a peer, and one of those that are none */
};

/* The phase of a sync, and since when it is in it; a part of the sync. */
struct metrics_stay {
	unsigned phase;
	uint64_t since_ns; /* 0: it just began */
};

/* -ENOMEM. */
int metrics_init(struct agent *a);
void metrics_deinit(struct agent *a);

/* `state` is that of the end event. */
void metrics_on_end(struct agent *a, enum metrics_role role, enum sync_kind kind, const char *state);
/* "publisher", "push", "committed" */
const char *metrics_role(enum metrics_role role);
const char *metrics_kind(enum sync_kind kind);
const char *metrics_result(enum metrics_result result);
/* An engine of ours was done with an epoch of `n_bytes` bytes: what it said of the socket to or from that node. */
void metrics_on_sent(struct agent *a, const char *to, uint64_t planned, const json_t *out);
void metrics_on_received(struct agent *a, const char *from, uint64_t planned, const json_t *in);
/* The same bytes, as weightd-trace saw them. */
void metrics_on_sent_traced(struct agent *a, const char *to, uint64_t n_bytes);
void metrics_on_received_traced(struct agent *a, const char *from, uint64_t n_bytes);

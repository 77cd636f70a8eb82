/*
 * Metrics
 *
 * Counts since the agent's start, for monitoring many nodes. Each node counts its own work, so that
 * sums over all nodes count nothing twice. weightctl(1) has the names and meanings.
 */
#pragma once

#include <stdbool.h>

#include "server/sync/state/byte_count.h"

struct agent;

#define METRICS_PHASES 16 /* at least the number of phases of each role */

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

/* One peer's. */
struct metrics_links {
	struct byte_count sent;
	struct byte_count received;
	uint64_t sent_traced; /* weightd-trace's count; BYTE_COUNT_UNKNOWN: none ever arrived */
	uint64_t received_traced;
};

struct metrics {
	uint64_t started_ns; /* CLOCK_REALTIME */
	uint64_t certificate_end_ns; /* CLOCK_REALTIME; 0: unknown */
	uint64_t n_ended[N_ROLES][N_KINDS][N_RESULTS];
	uint64_t phase_ns[N_ROLES][METRICS_PHASES];
	uint64_t n_epochs; /* coordinated here */
	uint64_t n_broken; /* that broke */
	uint64_t corrupt_bytes; /* received bytes that failed verification */
	struct metrics_links *links; /* a row per peer, and one for all other nodes */
};

/* The current phase of a sync; a member of the sync. */
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
/*
 * An engine of ours has finished an epoch of `n_bytes` bytes: its report about the socket to or
 * from that node.
 */
void metrics_on_sent(struct agent *a, const char *to, uint64_t planned, const json_t *out);
void metrics_on_received(struct agent *a, const char *from, uint64_t planned, const json_t *in);
/* The same bytes, as counted by weightd-trace. */
void metrics_on_sent_traced(struct agent *a, const char *to, uint64_t n_bytes);
void metrics_on_received_traced(struct agent *a, const char *from, uint64_t n_bytes);

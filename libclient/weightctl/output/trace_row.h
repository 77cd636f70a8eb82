/*
 * Rows of weightd-trace as columns
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "libclient/weightctl/output/column.h"

/* UINT64_MAX, or NULL: unknown. Its texts belong to the row. */
struct trace_row {
	const char *sync, *peer, *role;
	const char *limited_by, *stall; /* most, since it began; and now */
	char marked[24]; /* a stall, as tables have it */
	const char *process, *cgroup, *container, *transport;
	const char *quality;
	const char *source;
	uint64_t number;
	uint64_t version;
	uint64_t delivered, received, done, expected;
	uint64_t submitted, consumed, wire, retrans;
	uint64_t rate; /* 0: nothing moves */
	uint64_t left_ns, elapsed_ns, rtt_ns, stalled_ns;
	uint32_t sockets; /* open; UINT32_MAX: unknown, likewise */
	uint32_t connections; /* that were counted */
	uint32_t pid, uid;
	bool partial;
};

/* Offset of a member, for columns of a table. */
#define TRACE_ROW(member) offsetof(struct trace_row, member)

extern const struct column trace_row_columns[];

/*
 * `before` is an earlier state of the row, or NULL: the rate is of the bytes since then, or since it began.
 */
struct trace_row trace_row_of(const json_t *row, const json_t *before);

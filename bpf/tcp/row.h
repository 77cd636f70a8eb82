/*
 * A row: the sum that a client keeps under one {sync, version, peer, role}
 */
#pragma once

#include <jansson.h>

#include "bpf/base/process.h"
#include "bpf/tcp/meter.h"
#include "bpf/tcp/socket_census.h"
#include "bpf/tcp/stall.h"
#include "ipc/base/list.h"

#define ROW_TEXT_SIZE 128 /* bytes of each of its texts, with the NUL */
#define TRANSPORT_SIZE 16 /* the same */

struct label {
	char sync[ROW_TEXT_SIZE];
	char peer[ROW_TEXT_SIZE];
	json_int_t version;
	bool is_payload; /* else control */
};

/* Calls on its sockets, which are counted for a while if a client asks. */
struct row_calls {
	struct calls counts; /* once that is over: meanwhile the meter has them */
	uint64_t began_ns, ended_ns; /* 0: it is not over */
};

struct peer_totals;

struct row {
	struct list link; /* client::rows */
	uint32_t number; /* its number in the meter */
	struct label label;
	struct process process; /* the process that has these sockets */
	json_int_t expected; /* bytes to be delivered and received; -1: not given */
	char transport[TRANSPORT_SIZE]; /* the protocol on its sockets */
	uint32_t rtt_us; /* the longest of its connections at the last mark; 0: none */
	uint64_t began_ns; /* since then it is read: its span, or itself */
	struct totals before; /* its totals then */
	uint64_t lost_sent; /* the part of totals::lost that was reported */
	struct stall stall;
	struct stalled stalled; /* as of the last look; since_ns 0: it is not */
	struct stalls stalls; /* during its span, if knows_stalls */
	bool knows_stalls; /* a look has taken place */
	struct rest rest;
	uint64_t rested_ns; /* the part before it began */
	struct socket_census census;
	uint64_t n_misses; /* tracer::n_misses when it began */
	uint64_t moved; /* bytes, both ways, as of the last look */
	uint64_t moved_ns; /* time of the last look that found more; 0: none has */
	uint64_t stalled_ns; /* until when stalls are in the totals of the peer */
	struct peer_totals *peer_totals; /* totals of all rows like it */
	struct totals counted,
		divided; /* the parts of the counters and of the limits that are in peer_totals */
	uint64_t rest_divided; /* the same for the rest, which is in no limit */
	struct row_calls *calls; /* NULL: no client asked */
};

/* Parses a row's label in a request. False: `ret_why` explains. */
bool label_parse(const json_t *request, struct label *ret, const char **ret_why);
/* -1 if the request has no "expected". */
bool row_parse_expected(const json_t *request, json_int_t *ret, const char **ret_why);
/* NULL if the request has no "transport"; the text is the request's own. */
bool row_parse_transport(const json_t *request, const char **ret, const char **ret_why);
bool label_equal(const struct label *a, const struct label *b);

/* It is read from here on, in a span that begins. */
void row_begin(struct row *row, const struct totals *now, uint64_t now_ns);
/*
 * Before the row is sent: looks for stalls of a row in a span, which is looked at again and again.
 */
void row_look(struct row *row, const struct reading *now, bool is_in_span);
/*
 * The row since it began; `kind` is "row", or "progress" if it is unsolicited. NULL: memory ran out.
 */
json_t *row_json(const struct row *row, const char *kind, struct meter *m,
		 const struct reading *now);
/* One connection of it; `kind` is "flow" or that of an event. */
json_t *row_sample_json(const struct row *row, const char *kind, const struct sample *s);

/*
 * A row: what a client adds up under one {sync, version, peer, role}
 */
#pragma once

#include <jansson.h>

#include "bpf/base/process.h"
#include "bpf/tcp/meter.h"
#include "bpf/tcp/socket_census.h"
#include "bpf/tcp/stall.h"
#include "ipc/base/list.h"

#define ROW_TEXT_SIZE 128 /* of each of its words, with the NUL */
#define TRANSPORT_SIZE 16 /* likewise */

struct label {
	char sync[ROW_TEXT_SIZE];
	char peer[ROW_TEXT_SIZE];
	json_int_t version;
	bool is_payload; /* else control */
};

/* The calls on its sockets, which are counted for a while where somebody wants to know. */
struct row_calls {
	struct calls counts; /* once that is over: meanwhile the meter has them */
	uint64_t began_ns, ended_ns; /* 0: it is not over */
};

struct peer_totals;

struct row {
	struct list link; /* client::rows */
	uint32_t number; /* for the meter */
	struct label label;
	struct process process; /* whose sockets these are */
	json_int_t expected; /* bytes to be delivered and received; -1: not said */
	char transport[TRANSPORT_SIZE]; /* what speaks on its sockets */
	uint32_t rtt_us; /* the longest of its connections at the last mark; 0: none */
	uint64_t began_ns; /* of what it is read from: its span, or itself */
	struct totals before; /* its totals then */
	uint64_t lost_sent; /* of totals::lost */
	struct stall stall;
	struct stalled stalled; /* as of the last look; since_ns 0: it is not */
	struct stalls stalls; /* of its span, if knows_stalls */
	bool knows_stalls; /* somebody looked */
	struct rest rest;
	uint64_t rested_ns; /* of that, before it began */
	struct socket_census census;
	uint64_t n_misses; /* tracer::n_misses when it began */
	uint64_t moved; /* bytes, both ways, as of the last look */
	uint64_t moved_ns; /* of the look that last found more; 0: none has */
	uint64_t stalled_ns; /* until when stalls are in the account */
	struct peer_totals *peer_totals; /* of all rows like it */
	struct totals counted, divided; /* what is in it of the counters, and of the limits */
	uint64_t rest_divided; /* likewise of the rest, which is in no limit */
	struct row_calls *calls; /* NULL: nobody wanted to know */
};

/* What a request says of a row: false and why where it does not. */
bool label_parse(const json_t *request, struct label *ret, const char **ret_why);
/* -1 where it says nothing of what is expected. */
bool row_parse_expected(const json_t *request, json_int_t *ret, const char **ret_why);
/* NULL where it says nothing of it; the text is that of the request. */
bool row_parse_transport(const json_t *request, const char **ret, const char **ret_why);
bool label_equal(const struct label *a, const struct label *b);

/* It is read from here on, in a span that begins. */
void row_begin(struct row *row, const struct totals *now, uint64_t now_ns);
/* Before it is told: what it stalls on is known of rows in a span, which are looked at again and again. */
void row_look(struct row *row, const struct reading *now, bool is_in_span);
/* The row since it began; `kind` is "row", or "progress" where nobody asked. NULL where memory ran out. */
json_t *row_json(const struct row *row, const char *kind, struct meter *m,
		 const struct reading *now);
/* One connection of it; `kind` is "flow" or that of an event. */
json_t *row_sample_json(const struct row *row, const char *kind, const struct sample *s);

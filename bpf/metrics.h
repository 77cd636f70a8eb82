/*
 * Metrics: what the tracer counted since it began, of all clients, for those who watch many nodes by machine
 *
 * Names and meanings are in weightctl(1).
 */
#pragma once

#include <stdint.h>

#include "bpf/request.h"
#include "bpf/tcp/peer_totals.h"

#define METRICS_WORDS_MAX 64 /* of acts */
#define METRICS_WORD_SIZE 32 /* of one, with the NUL */

struct span;
struct tracer;

struct metrics_word {
	char word[METRICS_WORD_SIZE];
	uint64_t n;
};

struct metrics {
	uint64_t started_ns; /* CLOCK_REALTIME */
	struct peer_totals_list peers;
	uint64_t begun_spans, ended_spans;
	uint64_t span_ns; /* of those that ended */
	uint64_t lost_packets; /* that a client was too slow for */
	uint64_t lost_events[N_EVENT_SOURCES]; /* that there was no room for */
	uint64_t late_probes; /* of files that a process had begun to use */
	struct metrics_word events[METRICS_WORDS_MAX];
	unsigned n_words;
	uint64_t other_events; /* of words that are too many, or too long */
};

void metrics_init(struct metrics *m);
void metrics_deinit(struct metrics *m);

void metrics_on_span_end(struct metrics *m, const struct span *span);
/* NULL where memory ran out: it was one, whichever. */
void metrics_on_event(struct metrics *m, const char *word);
/* For stalls: at rows in a span is looked also while nobody follows them. */
void metrics_look(struct tracer *t);

/* All of it, as of now; see weightd-trace(8). */
int metrics_op(struct request *q);

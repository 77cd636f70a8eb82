/*
 * Metrics: what the tracer counted since it began, of all clients, for machines that watch many nodes
 *
 * Names and meanings are in weightctl(1).
 */
#pragma once

#include <stdint.h>

#include "bpf/request.h"
#include "bpf/tcp/peer_totals.h"

#define METRICS_WORDS_MAX 64 /* words of events */
#define METRICS_WORD_SIZE 32 /* bytes of one word, with the NUL */

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
	uint64_t span_ns; /* sum of the ended spans */
	uint64_t lost_packets; /* that a client was too slow for */
	uint64_t lost_events[N_EVENT_SOURCES]; /* that there was no room for */
	uint64_t late_probes; /* files that a process could use before they were probed */
	struct metrics_word events[METRICS_WORDS_MAX];
	unsigned n_words;
	uint64_t other_events; /* with a word that is too many, or too long */
};

void metrics_init(struct metrics *m);
void metrics_deinit(struct metrics *m);

void metrics_on_span_end(struct metrics *m, const struct span *span);
/* NULL: memory ran out, and the event counts under no word. */
void metrics_on_event(struct metrics *m, const char *word);
/* Looks at rows in a span, for their stalls, also while they have no follower. */
void metrics_look(struct tracer *t);

/* All of it, as of now; see weightd-trace(8). */
int metrics_op(struct request *q);

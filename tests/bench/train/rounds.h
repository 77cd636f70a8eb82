/*
 * Rounds of one rank
 *
 * The bench starts all contenders once and lets them work in turns: $ROUNDS is a folder with the pipes in.RANK and out.RANK.
 * A line "VERB SIZE COUNT REPEATS" asks for COUNT samples, each of REPEATS operations on SIZE bytes; the answer is a line
 * of as many numbers, the nanoseconds of one operation. A rank that waits for its turn sleeps.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct rounds {
	FILE *in, *out;
};

struct round {
	char verb[32];
	uint64_t size, count, repeats;
};

/* Opens the pipes of a rank, and reports that it is ready. */
struct rounds rounds_open(uint32_t rank);
/* Waits for the next one. False: there are no more. */
bool rounds_next(struct rounds *r, struct round *ret);
/* Measures the samples of a round: `run(context)` is one operation, `begin(context)` a barrier before each sample. */
void rounds_measure(struct rounds *r, const struct round *round, void (*begin)(void *),
		    void (*run)(void *), void *context);
/* Answers with numbers that are no times. */
void rounds_answer(struct rounds *r, const uint64_t *numbers, uint64_t n);

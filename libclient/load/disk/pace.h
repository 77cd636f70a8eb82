/*
 * Paces: the rate at which files may be read, over all threads of a load
 *
 * Each read waits for its turn, which comes once the bytes of the turns before it have had their time. Reads are short: some
 * 25 ms of the rate.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct pace {
	uint64_t rate; /* bytes a second; 0: no limit */
	pthread_mutex_t lock; /* protects the rest */
	pthread_cond_t stopped;
	uint64_t next_ns; /* the next turn, by CLOCK_MONOTONIC */
	bool is_stopped;
};

void pace_init(struct pace *p, uint64_t rate);
void pace_deinit(struct pace *p);

/* Bytes that may be read in one turn; a multiple of DIRECT_ALIGN_MAX. */
uint64_t pace_most(const struct pace *p);

/* Waits for the turn of `n` bytes. -ECANCELED: it was stopped before. */
int pace_take(struct pace *p, uint64_t n);

/* Nothing is read any more. */
void pace_stop(struct pace *p);

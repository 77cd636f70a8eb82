/*
 * Latencies
 *
 * A histogram of durations since the start. To count one costs a few nanoseconds.
 */
#pragma once

#include <stdint.h>

#define LATENCY_BUCKETS 13

/* Bucket i counts durations up to 4^i us, the last one all longer ones. */
struct latency {
	uint64_t sum_ns;
	uint64_t counts[LATENCY_BUCKETS];
};

static inline void latency_add(struct latency *l, uint64_t ns)
{
	unsigned i = 0;

	for (uint64_t bound_ns = 1000; i < LATENCY_BUCKETS - 1 && ns > bound_ns; bound_ns *= 4)
		i++;
	l->counts[i]++;
	l->sum_ns += ns;
}

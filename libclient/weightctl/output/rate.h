/*
 * Rates: of bytes that arrive, over the last seconds
 *
 * The average of a whole phase promises an end that recedes while nothing arrives, and remains wrong for long after the source
 * has become faster or slower.
 */
#pragma once

#include <stdint.h>

#define RATE_WINDOW_NS UINT64_C(4000000000) /* the rate is that of one to two windows */
#define RATE_STALL_NS UINT64_C(5000000000) /* without a byte: there is no rate */

struct rate_mark {
	uint64_t ns; /* CLOCK_MONOTONIC */
	uint64_t done; /* bytes by then */
};

struct rate {
	struct rate_mark from; /* where the window begins */
	struct rate_mark next; /* where it will begin */
	struct rate_mark last; /* when bytes were last seen to arrive */
};

void rate_begin(struct rate *r, uint64_t now, uint64_t done);
/* Begins anew behind a stall, and where bytes were lost again. */
void rate_update(struct rate *r, uint64_t now, uint64_t done);

/* Nanoseconds without a byte; 0 until they are RATE_STALL_NS. */
uint64_t rate_stalled_ns(const struct rate *r, uint64_t now);
/* Bytes that arrived within the window, and its nanoseconds until now. */
uint64_t rate_bytes(const struct rate *r, uint64_t now, uint64_t *ret_ns);

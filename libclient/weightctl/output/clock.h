/*
 * Clocks: CLOCK_MONOTONIC for durations, CLOCK_REALTIME for dates
 */
#pragma once

#include <stdint.h>
#include <time.h>

/* In nanoseconds. */
uint64_t clock_ns(clockid_t clock);
/* CLOCK_MONOTONIC. */
uint64_t clock_now_ns(void);

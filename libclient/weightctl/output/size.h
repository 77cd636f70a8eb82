/*
 * Sizes, rates and times for people
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define SIZE_TEXT_MAX 32

/* Powers of 1000: "999 B", "16.1 GB". All of these return `buf`. */
const char *size_text(char buf[SIZE_TEXT_MAX], uint64_t bytes);
/* So many bytes a second, up to 1e18: more is made up. */
uint64_t size_per_second(uint64_t bytes, uint64_t ns);
/* "5.0 GB/s"; "-" for no time at all. */
const char *size_rate(char buf[SIZE_TEXT_MAX], uint64_t bytes, uint64_t ns);
/* False: one of them is unknown, UINT64_MAX, or the whole is 0. */
bool size_percent(uint64_t part, uint64_t whole, double *ret);
/* "2.0%"; what is hardly anything is "<0.1%", and what is nearly all ">99.9%". NULL where that is false. */
const char *size_part(char buf[SIZE_TEXT_MAX], uint64_t part, uint64_t whole);
/* "38 us", "3.2 s", "5 min 12 s", "3 h 20 min", "4 d 2 h". */
const char *size_duration(char buf[SIZE_TEXT_MAX], uint64_t ns);
/* One unit, for a narrow column: "12s", "5m", "3h", "4d". */
const char *size_age(char buf[SIZE_TEXT_MAX], uint64_t ns);
/* "0:12", "1:02:03". */
const char *size_clock(char buf[SIZE_TEXT_MAX], uint64_t ns);

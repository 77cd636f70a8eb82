/*
 * Numbers
 *
 * Sizes that people write and read, and sums that may overflow.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

#define ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

/* `n` rounded up to a multiple of `align`, a power of two. False when it does not fit. */
static inline bool num_align_up(uint64_t n, uint64_t align, uint64_t *ret)
{
	if (__builtin_add_overflow(n, align - 1, &n))
		return false;
	*ret = n & ~(align - 1);
	return true;
}

static inline bool num_is_power_of_two(uint64_t n)
{
	return n && !(n & (n - 1));
}

/* Digits of that base and nothing else. -EINVAL. */
int num_parse(const char *s, int base, uint64_t *ret);

/* A number of bytes: 4096, 64K, 1.5G; K, M, G, T are powers of 1024. -EINVAL, -ERANGE. */
int num_parse_size(const char *s, uint64_t *ret);

#define NUM_SIZE_MAX 16

/* `bytes` for a person, powers of 1000: "999 B", "16.1 GB". Returns `buf`. */
const char *num_format_size(char buf[NUM_SIZE_MAX], uint64_t bytes);

/* CLOCK_MONOTONIC in nanoseconds. */
uint64_t num_now_ns(void);

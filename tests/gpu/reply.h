/*
 * Replies of the agent: one JSON object a line, {"ok": true, ...} or {"ok": false, "error": "...", "code": -22}
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "ipc/cuda/cuda_driver.h"

void reply_ok(void);
/* With members, each beginning with a comma: reply_done(", \"version\": %d", 3) */
void reply_done(const char *members, ...) __attribute__((format(printf, 1, 2)));
void reply_failed(int code, const char *why, ...) __attribute__((format(printf, 2, 3)));

/* One by one: reply_open(), members and lists, reply_close(). */
void reply_open(void);
void reply_member(const char *name, uint64_t value);
void reply_list(const char *name, const uint64_t *values, size_t n);
void reply_close(void);

/* Replies with the result of a call of the driver. */
void reply_result(const struct cuda_driver *cuda, cu_result r);

static inline uint64_t now_ns(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/*
 * Refusal log
 *
 * Who was turned away and why, in the log once for each cause: who knocks every second must not fill it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define REFUSAL_LOG_MAX 64 /* causes that are remembered */

struct refusal_log {
	uint64_t seen[REFUSAL_LOG_MAX]; /* hashes of causes; 0: none */
	unsigned next;
	uint64_t minute; /* in which ... */
	unsigned n_logged; /* ... so many were logged */
};

/* Logs it, unless it was logged before and not forgotten since. `who`: a clause, "node b is down". */
void refusal_log_add(struct refusal_log *r, const char *who, const char *why);

/* All of them are news again. */
void refusal_log_forget(struct refusal_log *r);

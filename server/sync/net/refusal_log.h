/*
 * Refusal log
 *
 * Logs refused connections, once for each cause: a peer that retries every second must not fill the
 * log.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define REFUSAL_LOG_MAX 64 /* causes that are remembered */

struct refusal_log {
	uint64_t seen[REFUSAL_LOG_MAX]; /* hashes of causes; 0: none */
	unsigned next;
	uint64_t minute; /* the current minute */
	unsigned n_logged; /* messages logged in that minute */
};

/* Logs a refusal, unless it is remembered. The first part is a clause, "node b is down". */
void refusal_log_add(struct refusal_log *r, const char *who, const char *why);

/* Forgets all causes. */
void refusal_log_forget(struct refusal_log *r);

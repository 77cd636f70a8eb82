/*
 * Refusals
 *
 * Who was turned away and why, in the log once for each cause: who knocks every second must not fill it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define REFUSALS_MAX 64 /* causes that are remembered */

struct refusals {
	uint64_t seen[REFUSALS_MAX]; /* hashes of causes; 0: none */
	unsigned next;
	uint64_t minute; /* in which ... */
	unsigned n_logged; /* ... so many were logged */
};

/* Logs it, unless it was logged before and not forgotten since. `who`: a clause, "node b is down". */
void refusals_log(struct refusals *r, const char *who, const char *why);

/* All of them are news again. */
void refusals_forget(struct refusals *r);

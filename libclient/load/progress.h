/*
 * Progress of a load, as the caller wants to hear of it: from its own thread, not too often, and with
 * the chance to say stop.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "weightd.h"

#define PROGRESS_INTERVAL_MS 50

struct progress {
	weightd_progress_fn fn; /* may be NULL */
	weightd_note_fn note; /* may be NULL */
	void *userdata;
	const char *phase; /* last told */
	uint64_t told_ns;
	bool ended; /* the end of the phase was told */
};

/* Tells when a phase begins and ends, and in between when the interval is over. 0 or -ECANCELED. */
int progress_report(struct progress *p, const char *phase, uint64_t done, uint64_t total);

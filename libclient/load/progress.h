/*
 * Progress of a load: reported from the caller's own thread, at a bounded rate, and with the option to cancel.
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
	const char *phase; /* last reported */
	uint64_t told_ns;
	bool ended; /* the end of the phase was reported */
};

/*
 * Calls the caller's function when a phase begins and ends, and in between when the interval is over. 0 or
 * -ECANCELED.
 */
int progress_report(struct progress *p, const char *phase, uint64_t done, uint64_t total);

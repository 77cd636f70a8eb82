/*
 * Progress of a load: reported from the caller's own thread, at a bounded rate, and with the options to cancel and to end in
 * time.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "libclient/connection/sentence.h"
#include "weightd.h"

#define PROGRESS_INTERVAL_MS 50

struct progress {
	weightd_progress_fn fn; /* may be NULL */
	weightd_note_fn note; /* may be NULL */
	void *userdata;
	const char *phase; /* last reported */
	uint64_t told_ns;
	bool ended; /* the end of the phase was reported */
	unsigned timeout_ms; /* 0: none */
	uint64_t deadline_ns; /* 0: none */
	int r; /* why it ends early */
	unsigned percent; /* of the phase, by then */
};

/* From now on no report is later than that. 0: there is time. */
void progress_set_timeout(struct progress *p, unsigned timeout_ms);

/*
 * Calls the caller's function when a phase begins and ends, and in between when the interval is over. 0, -ECANCELED or
 * -ETIMEDOUT: then and from then on.
 */
int progress_report(struct progress *p, const char *phase, uint64_t done, uint64_t total);

/* Makes a condition variable for progress_wait(), with the clock that does not jump. */
void progress_wait_init(pthread_cond_t *changed);

/* Waits with the lock held, until `changed` or the next report is due. */
void progress_wait(pthread_cond_t *changed, pthread_mutex_t *lock);

/* Sets the sentence of a load that ended after that. Returns its error. */
int progress_failed(const struct progress *p, struct sentence *s);

/*
 * The queue: what forward and backward ask for, in plans that pool gradients
 *
 * Sums of buckets, and units to be fetched, are done in the order in which this rank asks for them, by the thread of overlap.h.
 * Ranks of all nodes ask in one order. A request that failed stays the first one, and the caller's thread continues with it: in
 * the next call that waits, or before the gradients of the step are handed over, when all are done. With an engine of the
 * caller there is no thread.
 *
 * A request that a process did not complete is asked for again by its successor, which repeats the passes.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "libclient/train/plan/control.h"

struct touched;
struct wait_place;
struct weightd_train;

struct queue_request {
	uint32_t bucket; /* all of it was handed over; FETCH: that of the unit */
	bool is_fetch;
	uint64_t position; /* of a FETCH: control_exchange() */
	uint64_t replaced; /* of the FETCH before into the same room; 0: none in this step */
};

/* Under the lock of struct overlap. */
struct queue {
	struct queue_request *requests;
	uint32_t first, end; /* those that are left */
	uint32_t n_allocated;
	struct control_word changes; /* grows with each word that a request publishes, and each end of one */
};

void queue_deinit(struct queue *q);
/* Makes room for one more request. -ENOMEM with a sentence. */
int queue_reserve(struct weightd_train *t);
/* Appends a request, for which there is room. */
void queue_ask(struct weightd_train *t, const struct queue_request *request);
/* Waits until a word of this rank, which requests publish, has a value. Errors of waits; the call can be repeated. */
int queue_wait_for(struct weightd_train *t, struct control_word *word, uint64_t value);
/* Waits until all requests of the step are done, before the gradients are handed over. No others follow in this step. */
int queue_finish(struct weightd_train *t, uint64_t step);
/* Wakes the caller's thread, as a word, or the thread of overlap.h, has another state. */
void queue_changed(struct weightd_train *t);
/* Does what is asked for in a step, until queue_finish() or a failure. By the thread. */
int queue_serve(struct weightd_train *t, uint64_t step);

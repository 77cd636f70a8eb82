/*
 * Overlap
 *
 * A thread of a two-phase plan that sums buckets during backward, as soon as all ranks have handed them over. It takes
 * all weights to be equal: they are known only at the end, and if they are not, the executor sums again.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "libclient/train/engine/wait.h"
#include "libclient/train/touched.h"

struct weightd_train;

struct overlap {
	bool is_running;
	pthread_t thread;
	struct control_word done; /* the step that the thread is done with, for better or worse */
	struct wait_place place; /* the thread's */
	struct touched touched; /* the thread's */
	/* The rest under this lock, with a signal for each change. */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	uint64_t step; /* the one to sum buckets of */
	bool is_complete; /* this rank handed over all buckets of the step: deadlines count */
	bool ends;
	int r; /* of that step */
	char *error; /* its sentence, or NULL */
};

/* Starts the thread, where the plan asks for one. It waits for others as `place` does, and never spins. */
int overlap_init(struct weightd_train *t, const struct wait_place *place);
void overlap_deinit(struct weightd_train *t);

/* Has the thread sum the buckets of a step from now on. */
void overlap_begin(struct weightd_train *t, uint64_t step);
/* This rank handed over more buckets. */
void overlap_notify(struct weightd_train *t);
/*
 * Waits until the thread is done with the step: this rank handed over all. Returns its failure once, with the sentence;
 * the executor does what is left. -EINTR: call it again.
 */
int overlap_end(struct weightd_train *t, uint64_t step);

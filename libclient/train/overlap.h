/*
 * Overlap
 *
 * A thread of a two-phase plan that sums buckets during backward, as soon as all ranks have handed them over. It takes all
 * weights to be equal: they are known only at the end, and if they are not, the executor sums again. With several nodes it
 * exchanges the sums, unless by an engine of the caller: the executor does so, in the update. In a plan that pools gradients it
 * does what is in the queue.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "libclient/train/engine/wait.h"
#include "libclient/train/queue.h"
#include "libclient/train/touched.h"

struct plan_op;
struct weightd_train;

struct overlap {
	bool is_running;
	bool has_lock; /* plans with overlap, also without a thread */
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
	struct queue queue; /* plans that pool gradients */
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
/* The failure of the thread in its step, once; 0: there is none. */
int overlap_failure(struct weightd_train *t);

/* The sum with equal weights, unless it is made. All ranks of the node have handed over the bucket. */
void overlap_sum_bucket(struct weightd_train *t, struct touched *touched, uint32_t bucket,
			uint64_t step);

/*
 * The SCATTER of one bucket, which all ranks of the node have handed over, in a step: sums it first, unless that is done.
 * Several nodes: the thread does it during backward, and the executor what the thread did not.
 */
int overlap_scatter(struct weightd_train *t, struct wait_place *place, const struct plan_op *op,
		    uint64_t step);

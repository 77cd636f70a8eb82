/*
 * Waits
 *
 * Waits for words of other ranks in shared memory: a short spin where each rank has a CPU, then futex, with a deadline
 * and a look at the life of the rank that is waited for. A death is noticed within WAIT_TICK_MS.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "libclient/train/plan/control.h"
#include "weightd-train.h"

#define WAIT_TICK_MS 50

struct wait_place {
	struct weightd_job *job; /* NULL: nobody can die, for tests */
	uint32_t rank; /* ours */
	uint32_t n_ranks;
	bool spins; /* there are no fewer CPUs than ranks */
	int deadline_ms; /* < 0: none */
	enum weightd_on_death on_death;
};

/* What is waited for, for the sentence: "rank 2 did not hand over its gradients of step 17 within 30 s". */
struct wait_reason {
	uint32_t rank;
	uint64_t step;
	const char *what; /* "hand over its gradients", "update elements 4096 to 8192", "leave the barrier" */
};

/* Sets `spins` by the CPUs that this process may use. */
void wait_place_init(struct wait_place *p, struct weightd_job *job, uint32_t rank, uint32_t n_ranks,
		     const struct weightd_train_options *options);

/* Publishes: everything before is visible to who sees the value. Wakes waiters if there are any. */
void wait_publish(struct control_word *word, uint64_t value);

#define WAIT_DEAD 1 /* on_death is FINISH, and the rank died */

/*
 * Waits until the word is at least `value`. 0; WAIT_DEAD; -EOWNERDEAD, -ETIMEDOUT or -ESTALE with a sentence. Looks every
 * WAIT_TICK_MS whether the process of `reason->rank` lives and the job exists.
 */
int wait_for(const struct wait_place *p, struct control_word *word, uint64_t value,
	     const struct wait_reason *reason);

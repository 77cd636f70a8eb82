/*
 * Waits
 *
 * Waits for words of other ranks in shared memory: a short spin where each rank has a CPU, then futex, with a deadline
 * and a look at the life of the rank that is waited for. A death is noticed within WAIT_TICK_MS.
 *
 * A rank without a process is dead only if it had one in the lifetime of this process: a rank that is still starting has
 * none either, and the words of a job that is resumed are as old as its last process. So a wait_place remembers the ranks
 * that it has met. Only the deadline ends a wait for a rank that never came.
 *
 * A stopped rank (SIGSTOP) has its process: only the deadline ends that. Time in which this process itself was stopped
 * does not count.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "libclient/train/engine/status.h"
#include "libclient/train/plan/control.h"
#include "weightd-train.h"

#define WAIT_TICK_MS 50

struct wait_place {
	struct weightd_job *job; /* NULL: nobody can die, for tests */
	uint32_t rank; /* ours */
	uint32_t n_ranks;
	bool spins; /* there are no fewer CPUs than ranks */
	int deadline_ms; /* < 0: none */
	int start_ms; /* likewise, while is_starting: other ranks start as well, which takes them longer than a step */
	bool is_starting;
	enum weightd_on_death on_death;
	bool is_interruptible; /* by signals */
	/*
	 * FAIL: the death of any rank ends each wait, since the rank that is waited for may wait for the dead one. Clear it
	 * where a rank may end its work, and its process, before the others have (staleness).
	 */
	bool watches_all;
	/* Asks weightd every second if the job exists: clear it where another thread may use the connection. */
	bool asks_server;
	struct status_lane *lane; /* that shows waits; NULL: none */
	/*
	 * Called every WAIT_TICK_MS of a wait_for(). Asks is_over(wait) as often, which looks at other ranks and the deadline
	 * as well, and returns at the latest when it is: true if a signal ended it that may interrupt. NULL: nothing is called.
	 */
	bool (*serve)(void *data, bool (*is_over)(void *wait), void *wait);
	void *serve_data;
	_Atomic bool is_patient; /* no deadline counts, as this rank is not there itself yet */
	_Atomic bool is_cancelled; /* set by another thread: waits end within a tick */
	_Atomic int pids[WEIGHTD_RANKS_MAX]; /* of ranks that were met, as weightd_job_holder() */
};

/* A wait in the words of its sentence: "rank 2 did not hand over its gradients of step 17 within 30 s". */
struct wait_reason {
	uint32_t rank;
	uint64_t step; /* 0: none */
	enum control_topic topic; /* the same for the status of this rank */
	const char *what; /* "hand over its gradients", "update its parameters", "enter the barrier" */
	struct plan_interval elements; /* of the flat range, that it is about; empty: not named */
	const char *cause; /* another one of being late: "opens units in another order"; NULL: none */
	bool for_successor; /* FINISH: the rank is known to be dead; waits for its next process */
};

/* Meets the ranks that are there, as wait_place_meet(). */
void wait_place_init(struct wait_place *p, struct weightd_job *job, uint32_t rank, uint32_t n_ranks,
		     const struct weightd_train_options *options);

/*
 * Meets the ranks that are there, and sets `spins` by the CPUs that they share. To be called again once all are there: ranks
 * may be bound to CPUs of their own, and the death of one that was never met is not noticed.
 */
void wait_place_meet(struct wait_place *p);

/* Publishes: everything before is visible to who sees the value. Wakes waiters if there are any. */
void wait_publish(struct control_word *word, uint64_t value);

/* Likewise where several ranks may write the word: it only grows. */
void wait_publish_max(struct control_word *word, uint64_t value);

#define WAIT_DEAD 1 /* on_death is FINISH, and the rank died */

/*
 * Waits until the word is at least `value`. 0; WAIT_DEAD; -EOWNERDEAD, -ETIMEDOUT, -EINTR, -ESTALE or -ECANCELED with a
 * sentence. Looks every WAIT_TICK_MS at the process of `reason->rank`, and every second if the job exists. Threads may wait
 * at the same time, each with a place of its own.
 */
int wait_for(struct wait_place *p, struct control_word *word, uint64_t value,
	     const struct wait_reason *reason);

/*
 * Likewise for a word that stands for several ranks: find_rank() has the one that is missing now, reason->rank the first
 * one.
 */
int wait_for_found(struct wait_place *p, struct control_word *word, uint64_t value,
		   const struct wait_reason *reason,
		   uint32_t (*find_rank)(const struct wait_reason *reason));

/*
 * Waits for a word that another thread of this rank publishes, sooner or later. 0; -EINTR or -ESTALE with a sentence about
 * `what` the thread does: "sum gradients". `tick` is called every WAIT_TICK_MS; NULL: nothing.
 */
int wait_for_thread(struct wait_place *p, struct control_word *word, uint64_t value,
		    const char *what, void (*tick)(void *data), void *data);

/* -ESTALE with a sentence: the job was removed, and this rank cannot do `what`. 0: it was not, or weightd is away. */
int wait_check_removed(struct wait_place *p, const char *what);

/* A wait for another node, in a call that looks at this one every WAIT_TICK_MS. */
struct wait_beat {
	struct wait_place *place;
	int deadline_ms; /* < 0: none */
	uint64_t woke_ns, waited_ns,
		looked_ns; /* as in other waits; the last question whether the job exists */
};
#define WAIT_LATE 2 /* the deadline has passed */

void wait_beat_begin(struct wait_beat *b, struct wait_place *p);
/*
 * 0: wait on; WAIT_LATE; -ECANCELED, -EOWNERDEAD or -ESTALE with a sentence about what this rank does: "exchange gradients".
 * With FAIL the death of any rank of this node ends the wait.
 */
int wait_beat(struct wait_beat *b, const char *what);

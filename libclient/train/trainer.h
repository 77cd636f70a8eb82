/*
 * The trainer
 *
 * One rank of a training job: its mappings, the words it waits for, and where it is in the steps. All that must outlive
 * it is in the job.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "libclient/train/engine/arena.h"
#include "libclient/train/engine/identity.h"
#include "libclient/train/engine/wait.h"
#include "libclient/train/exchange.h"
#include "libclient/train/handover.h"
#include "libclient/train/overlap.h"
#include "libclient/train/touched.h"
#include "libclient/train/units.h"
#include "libclient/train/values.h"

/* Values that a job without a step has from a checkpoint. */
struct trainer_loaded {
	bool is_there;
	uint64_t step, n_skipped;
	struct control_scale scale;
};

/* A save in the background; its room is above this one. */
struct trainer_saving {
	struct saving *state; /* NULL: nothing was saved yet */
	bool (*is_running)(struct weightd_train *t); /* the thread reads the snapshot, and FROZEN */
	int (*wait)(struct weightd_train *t);
	void (*end)(struct weightd_train *t); /* cancels it, and frees the state */
};

/* Values written between steps, by this process. */
struct write {
	uint64_t step; /* committed steps; the number is about them */
	uint32_t n_ended; /* calls of weightd_train_write_end() */
	bool is_open;
};

struct weightd_train {
	struct weightd_plan *plan;
	struct weightd *w; /* the job keeps it open */
	pid_t pid; /* a forked child is no rank */
	struct arena arena;
	struct wait_place place;
	struct status status;
	bool is_begun;
	bool has_met_all; /* all ranks took part in a step */
	uint64_t step; /* completed by this rank: its gradients are handed over, and the update that goes with it is done */
	uint8_t *buffers; /* the caller's, plan->buffer_size bytes; NULL: none */
	void **filled; /* ranges that rank 0 fills, writable whole: see fill.h; NULL entries: not mapped */
	struct write write;
	struct values values; /* strategies that pool gradients */
	struct handover handover;
	struct overlap overlap;
	struct units units;
	struct exchange exchange; /* with other nodes */
	struct touched touched;
	double norm;
	uint64_t nan_step; /* to be reported: a step that changed nothing because of a rank's loss; 0: none */
	uint32_t nan_rank;
	struct trainer_loaded loaded;
	struct trainer_saving saving;
	struct weightd_traffic before; /* of the processes before this one */
	_Atomic uint64_t n_read,
		n_written; /* bytes of memory of other ranks; the overlap thread counts, too */
};

/* -ECHILD in a forked child. */
static inline int trainer_check(const struct weightd_train *t)
{
	return identity_check(t->pid);
}

static inline uint64_t trainer_word(struct control_word *word)
{
	return atomic_load_explicit(&word->value, memory_order_acquire);
}

/* The version that the ranks must have made for a step to be complete: it lags behind by the staleness. */
uint64_t trainer_version(const struct weightd_train *t, uint64_t step);

/* The step is complete on this rank: the next one begins. */
void trainer_complete(struct weightd_train *t, uint64_t step);

/* This rank's words. */
static inline struct control_rank *trainer_words(const struct weightd_train *t)
{
	return arena_rank(&t->arena, t->arena.rank);
}

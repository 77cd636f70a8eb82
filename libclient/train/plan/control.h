/*
 * Control words
 *
 * The JOURNAL part of a job: words in which ranks order their steps, a redo log and saved states for each rank. All of it
 * outlives every process. A word has one writer, its rank (or the rank that acts for it under its lock), and only grows.
 *
 * Steps count from 1. A rank in step s has committed[r] == s - 1 and goes through
 *	GRAD, buffers and saved slot are written; grad = s
 *	(two-phase) sums of buckets; reduced[b] = 2 s; norm, norm_step = s
 *	blocks of the update, under `journal`; param = s
 * and the step is committed once all ranks have param >= s. Each word is published with release order after what it
 * stands for, so that a rank that was killed anywhere continues from the words alone:
 *	grad == param: forward and backward of step param + 1 have to be done (again)
 *	grad == param + 1: the update of step grad has to be finished, from the block in `journal`
 * With several nodes, `line` is the last exchange that the rank completed; see exchange.h.
 * With plan_pools_grads() a sum over the ranks of the node is 2 s - 1, in STAGED, and the sum over nodes 2 s, in REDUCED.
 * With staleness k, step s ends once all ranks have made version s - k: between steps grad - k <= param <= grad. A rank makes
 * newer versions as soon as all gradients are there.
 */
#pragma once

#include <stdalign.h>
#include <stdatomic.h>
#include <stdint.h>

#include "libclient/train/plan/plan.h"

#define CONTROL_MAGIC 0x4e49415254444757ull
#define CONTROL_ABI 6

/* A word that ranks wait for: its lower half is the futex. */
struct control_word {
	alignas(64) _Atomic uint64_t value;
	_Atomic uint32_t n_waiters; /* may be too high after a kill: only wakes in vain */
};

#define CONTROL_SENTENCE 512
#define CONTROL_SAVE_SHIFT 8 /* bits of a save's number below the step */

/*
 * A save of all ranks, by its number: the step << 8 | its place among the saves after that step. Rank 0 makes the folder,
 * and ends the save once each rank has written its files; see save/saving.c.
 */
struct control_save {
	struct control_word
		begun; /* the newest save that the rank takes part in; in the head: whose folder is there */
	struct control_word
		ended; /* the newest one whose files are written; in the head: that has its place; or failed */
	uint64_t tag; /* in the head: of the name of the folder, while it is filled */
	int32_t result; /* of `ended`: 0, or -errno with the sentence */
	char sentence[CONTROL_SENTENCE];
};

/* First 4096 bytes. */
struct control_head {
	_Atomic uint64_t step; /* newest committed step, for lists of jobs; a hint */
	uint64_t magic; /* 0: not initialised; written last */
	uint32_t abi;
	uint32_t n_ranks;
	uint32_t state_size;
	uint32_t node; /* 1 + that of the ranks, from the first one on; 0: none has come */
	struct control_word
		filled; /* PARAM has its first values: 1, or control_loaded() of the checkpoint that they are from */
	struct control_save save;
};

/* Journal: the block being updated. Steps up to 2^31, blocks up to 2^32. */
#define CONTROL_LOGGED 1ull /* the log has the block's new values: copy them home (again) */
static inline uint64_t control_journal(uint64_t step, uint64_t block, uint64_t phase)
{
	return step << 33 | block << 1 | phase;
}
static inline uint64_t control_journal_step(uint64_t word)
{
	return word >> 33;
}
static inline uint64_t control_journal_block(uint64_t word)
{
	return (word >> 1) & ((1ull << 32) - 1);
}

/*
 * Values that rank 0 writes between steps: the step before them, their number there from 1 on, and the point that the rank
 * has passed. A rank that was killed counts from 1 again, and passes what its word has without doing it again.
 */
#define CONTROL_WRITE_BEGUN 0ull
#define CONTROL_WRITE_ENDED 1ull
#define CONTROL_WRITES_MAX ((1u << 16) - 1)
static inline uint64_t control_write(uint64_t step, uint64_t number, uint64_t point)
{
	return step << 17 | number << 1 | point;
}

/* Values of a checkpoint are there: more than the 1 of first values, also for one of step 0. */
static inline uint64_t control_loaded(uint64_t step)
{
	return step + 2;
}
/* 0 for first values, too. */
static inline uint64_t control_loaded_step(uint64_t word)
{
	return word > 2 ? word - 2 : 0;
}

/*
 * The caller's state with a step, and what the step must be repeated with. CONTROL_SAVED(p) for each rank: the ranks
 * read that of the step they update, and a restart that of the step before.
 */
#define CONTROL_SAVED(p) ((p)->staleness + 2)
struct control_saved {
	uint64_t step; /* written last: other ranks may look for it before `grad` */
	uint64_t state_size; /* bytes behind this struct in use */
	double weight;
	double max_norm;
	double lr[PLAN_GROUPS_MAX];
	uint32_t has_nan; /* the loss of the rank was not a number */
	uint32_t n_unused; /* parameters without a gradient of this rank */
	uint64_t n_asked; /* exchanges that the passes of the rank asked for: control_position() */
	/*
	 * The state, then, after state_size bytes of the plan, a bit for each tensor: such a parameter. The buffers of the rank
	 * are in BUFFER, slot step % 2.
	 */
};

/* The loss scale after a step; plans with scaling. */
struct control_scale {
	float scale;
	uint32_t n_finite; /* steps since it changed */
	uint32_t has_overflowed; /* that step changed nothing: a gradient was not finite */
};

/*
 * Exchanges between nodes, in their order: number `index` of the step, from 1 on; then, after step `step`, those of values, by
 * control_values(): number 0 are the first values of all, after step 0. The last ones are those of ranks that are done.
 */
#define CONTROL_VALUES (1ull << 31)
/*
 * Exchanges that the passes of a step ask for begin behind this number, however many an evaluation before them asked for. No
 * exchange has it: it is `line` of a rank that was started anew, and does not repeat the evaluation.
 */
#define CONTROL_PASSES (1ull << 30)
#define CONTROL_ENDS (UINT32_MAX - 1ull) /* and the one behind it */
static inline uint64_t control_exchange(uint64_t step, uint64_t index)
{
	return step << 32 | index;
}
static inline uint64_t control_exchange_step(uint64_t position)
{
	return position >> 32;
}
static inline uint64_t control_exchange_index(uint64_t position)
{
	return position & UINT32_MAX;
}

enum control_point {
	CONTROL_FETCH, /* before the values; without bytes before the first ones */
	CONTROL_SEND,
	CONTROL_SENT, /* all nodes have the values */
	/*
	 * With plan_pools_grads(): all nodes know that, and node 0 does not send the values again.
	 */
	CONTROL_KEPT,
};
static inline uint64_t control_values(uint64_t number, enum control_point point)
{
	return CONTROL_VALUES + 4 * number + point;
}
static inline enum control_point control_values_point(uint64_t index)
{
	return (enum control_point)((index - CONTROL_VALUES) % 4);
}
static inline bool control_is_values(uint64_t index)
{
	return index >= CONTROL_VALUES && index < CONTROL_ENDS;
}

/*
 * A node's word to the others about a step: the same bytes on all lines. The one of this node is made of the saved states of its
 * ranks; then, behind it, n_ranks doubles: the weight of each rank of the node; then a bit for each tensor: a parameter that no
 * rank of the node has a gradient of.
 */
struct control_summary {
	uint64_t step; /* written last */
	double max_norm; /* of the first rank of the node; node 0's counts */
	double lr[PLAN_GROUPS_MAX]; /* likewise */
	uint32_t nan_rank; /* 1 + the first rank of the node whose loss was not a number; 0: none */
	uint32_t n_unused; /* such parameters */
	double norm; /* sum of squares of the pieces that this line of the node owns; sent later, with DECIDE */
};

/* Words of one rank. */
struct control_rank {
	struct control_word grad;
	struct control_word param;
	struct control_word journal;
	struct control_word norm_step; /* norm is that of this step */
	struct control_word line; /* control_exchange() */
	/*
	 * Exchanges that evaluations and passes asked for, each by index % 2: 4 * the bucket + a code of the type. Written before the
	 * exchange begins: the last one that is complete, and the one behind it, can be found again.
	 */
	uint64_t asked[2][2];
	alignas(64) double norm; /* sum of squares of the rank's shard of the mean gradient, in all nodes */
	uint64_t n_skipped[2]; /* steps up to `param` that changed nothing: by param % 2 */
	uint64_t traffic_read, traffic_written, traffic_sent,
		traffic_replicas; /* since the job began; hints */
	struct control_scale scales[2]; /* after the step `param`, and the one before: by param % 2 */
	struct control_word write; /* control_write(): values written between steps */
	struct control_word
		loaded; /* its part is that of a checkpoint: control_loaded(). Meaningless once the job took a step */
	struct control_save save;
};

/* Activities of a rank, for people. */
enum control_phase {
	CONTROL_NEVER, /* no process was this rank */
	CONTROL_COMPUTING,
	CONTROL_WAITING,
	CONTROL_UPDATING,
	CONTROL_SUMMING, /* another thread of the rank sums gradients, or waits: see `thread` */
	CONTROL_DONE,
};

enum control_topic {
	CONTROL_UNNAMED,
	CONTROL_GRADIENTS,
	CONTROL_SUMS,
	CONTROL_PARAMETERS,
	CONTROL_FIRST_VALUES,
	CONTROL_WRITTEN_VALUES,
	CONTROL_NODES, /* of other nodes: their rank of this line */
	CONTROL_UNITS, /* parameters of a unit: a rank of this node that gathers a part of them */
	CONTROL_TOPICS,
};

/*
 * Status of one rank, for readers that are no ranks: nothing in a step depends on it. Relaxed stores of the rank. `now` and
 * `thread` are control_activity().
 */
struct control_status {
	alignas(64) _Atomic uint64_t now;
	_Atomic uint64_t thread; /* of the thread that sums during backward */
	_Atomic uint64_t step; /* completed */
	_Atomic uint64_t loss; /* bits of a double */
	_Atomic uint64_t computing_ns, waiting_ns, updating_ns; /* in the last complete step */
	_Atomic uint64_t has_loss; /* 1: `loss` was given */
};

/* A phase, what it is about, and when it began: CLOCK_MONOTONIC in units of 1024 ns, 48 bits. One word: no reader sees half. */
static inline uint64_t control_activity(enum control_phase phase, enum control_topic topic,
					uint32_t rank, uint64_t now_ns)
{
	return now_ns >> 10 << 16 | (uint64_t)(rank & 0xff) << 8 | (uint64_t)topic << 4 |
	       (uint64_t)phase;
}
static inline enum control_phase control_activity_phase(uint64_t word)
{
	return (enum control_phase)(word & 0xf);
}
static inline enum control_topic control_activity_topic(uint64_t word)
{
	return (enum control_topic)(word >> 4 & 0xf);
}
static inline uint32_t control_activity_rank(uint64_t word)
{
	return (uint32_t)(word >> 8 & 0xff);
}
static inline uint64_t control_activity_ns(uint64_t word)
{
	return word >> 16 << 10;
}

/* Words of one rank for each bucket. */
struct control_bucket {
	struct control_word grad; /* GRAD of the bucket was handed over in this step */
	/* REDUCED of its shard: 2 * step: the sum; 2 * step - 1: the sum if weights turn out to be equal (overlap) */
	struct control_word reduced;
	/*
	 * Plans with exchanges that passes ask for: the index of the bucket's SCATTER in the step that `grad` has; written before it.
	 */
	uint64_t scatter;
	/*
	 * The FETCH of its unit that the rank completed last: control_exchange(). Written before `line`: a rank that went through its
	 * units in another order has another one there.
	 */
	uint64_t fetched;
};

/* Offsets in JOURNAL, a pure function of the plan. */
struct control_layout {
	uint64_t ranks; /* struct control_rank [n_ranks] */
	uint64_t status; /* struct control_status [n_ranks] */
	uint64_t buckets; /* struct control_bucket [n_ranks][n_buckets]; two-phase plans */
	/*
	 * struct control_word [n_ranks][n_rooms]: the last FETCH into the room whose parameters the rank is done with, by its
	 * control_exchange(); those of earlier steps are done with.
	 */
	uint64_t rooms;
	/*
	 * struct control_summary for each rank, for steps by step % 2, for each node: that of node i for step s of rank r is
	 * summary number (r * 2 + s % 2) * n_nodes + i, summary_stride bytes each. One node: none.
	 */
	uint64_t summaries;
	uint64_t summary_stride;
	uint64_t saved; /* CONTROL_SAVED for each rank, saved_stride bytes each: step % CONTROL_SAVED */
	uint64_t saved_stride;
	/*
	 * One for each rank: PLAN_BLOCK fp32 elements of PARAM, or MASTER, and of each moment; then, from log_rounded on, of
	 * PARAM in 16 bits.
	 */
	uint64_t logs;
	uint64_t log_rounded;
	uint64_t log_stride;
	uint64_t size;
};

/* Also called for the size of the part, by parts.c: needs all that was built before. */
struct control_layout control_layout(const struct weightd_plan *p);

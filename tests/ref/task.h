/*
 * The task: model, data and optimizer of a run, from the command line
 *
 * Trainer and oracle parse the same options, so that one list of words describes the same computation for both; each
 * ignores what concerns only the other.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "tests/ref/model.h"

#define TASK_GROUPS                                                                                \
	2 /* at most: matrices; biases and norms, which do not decay and learn at half the rate */

struct task {
	struct model_options model;
	uint64_t seed;
	uint64_t steps;
	uint32_t n; /* ranks, of all nodes together */
	uint32_t batch; /* samples of a step, of all ranks together */
	uint32_t last_batch; /* those of the last step; 0: batch */
	uint32_t no_sync; /* batches that add up to one step */
	bool by_sample; /* a pass for each sample: the same sums for any number of batches */
	uint32_t groups; /* 1 or 2 parameter groups */
	const char *optimizer; /* "adamw", "adam" or "sgd" */
	double lr, weight_decay, beta1, beta2, eps, momentum, max_norm;
	bool nesterov;
	const char *nan_at; /* "STEP:RANK": the loss of that rank in that step is not a number */
	bool unused_layer; /* the side layer is used by rank 0 alone */
	const char *frozen; /* a parameter that is not trained */
	bool rest; /* the ballast has no gradient in odd steps, on all ranks, and zeros in the others */
	const char *losses; /* file for a line of JSON a step */
	const char *dump; /* prefix of files for the bytes at the end: PREFIX.PARAM and so on */

	/* Trainer only. */
	const char *create; /* creates a job of this name, and writes its token */
	const char *strategy, *form, *on_death, *publish;
	uint32_t rank; /* of its node; UINT32_MAX: that of the environment */
	uint32_t nodes, node; /* node UINT32_MAX: that of the environment */
	const char *master; /* address of node 0; NULL: that of the environment */
	uint32_t port; /* of the ranks 0; 0: that of the environment */
	uint32_t replicas; /* 0: the mesh has one dimension */
	uint32_t sync_every;
	uint64_t bucket_bytes;
	uint32_t staleness, copies, state_size;
	bool overlap, without_journal, weights;
	uint32_t unit, levels; /* "zero3": modules of a unit, and levels of units */
	bool keeps_units, without_prefetch;
	uint64_t evaluate_every; /* steps; a forward pass alone after each multiple, before the next step. 0: none */
	bool evaluate_behind; /* as a program does it behind a step: a process that begins there leaves it out */
	const char *disorder; /* "STEP:RANK": that rank opens the last unit first */
	bool keep_on; /* calls again what gave up waiting for another rank; holds first where it is an update */
	bool begins_late; /* calls again where it gave up waiting to begin: the deadline is one of steps alone */
	int deadline_ms;
	uint64_t stop_after; /* ends there as if killed, without leaving the job; 0: not */
	uint64_t hold_at; /* waits for a byte on standard input before the update of this step */
	/* "STEP:N": waits likewise in that step, once N units were opened or buckets handed over */
	const char *hold_within;
	const char *hold_before; /* "STEP,STEP": waits likewise before these steps begin */
	const char *dtype,
		*grad_dtype; /* "f32", "bf16" or "f16"; grad_dtype NULL: that of the parameters */
	double scale; /* first scale of the loss; 0: no scaling */
	uint32_t scale_interval;
	double small; /* factor of all gradients before they are rounded */
	const char *inf_at; /* "STEP:RANK": a gradient of that rank in that step is infinite */
	const char *release; /* version of the library that the plan claims; NULL: this one */
	const char *progress, *report;
	uint64_t linger_ms;
	const char *save, *load; /* folders of checkpoints */
	uint64_t save_every, save_from; /* steps; saves after each multiple, from that step on */
	uint32_t keep;
	uint64_t hold_save; /* waits for a byte on standard input before the save after this step */
	bool save_wait; /* waits for each save before the next step */
};

/* Fills it from the command line, or ends the program with a sentence. */
void task_parse(int argc, char **argv, const char *program, struct task *ret);
/* Learning rate of a step for each group, with a warm-up. */
void task_rates(const struct task *t, uint64_t step, double ret[TASK_GROUPS]);
/* Ranks of one node. */
uint32_t task_local(const struct task *t);
uint32_t task_group(const struct task *t, const struct model_tensor *tensor);
/* Samples of a step's batch. */
uint32_t task_batch(const struct task *t, uint64_t step);
/* True if no rank has a gradient of the tensor in this step. */
bool task_rests(const struct task *t, const struct model_tensor *tensor, uint64_t step);
/* True if the option `at`, such as nan_at, names this step, and this rank unless that is UINT32_MAX. */
bool task_is_at(const char *at, uint64_t step, uint32_t rank);
/* True if hold_before has the step. */
bool task_holds(const struct task *t, uint64_t step);
bool task_is_frozen(const struct task *t, const struct model_tensor *tensor);

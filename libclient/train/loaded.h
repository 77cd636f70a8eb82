/*
 * Loaded jobs
 *
 * A job that took no step gets the values of a checkpoint in two parts: each rank writes those of its own, then its
 * word; then rank 0 sets the words of all ranks to the step, as if they had just completed it. A rank that is killed before
 * that loads again; with several nodes its word remains, as those that it loaded with may have gone on.
 */
#pragma once

#include <stdint.h>

struct weightd_train;

/* The step whose gradients this rank has handed over, as far as the words are those of steps. */
uint64_t loaded_open(struct weightd_train *t);

/* Several nodes: the values of t->loaded are in this rank's part, whatever happens to its process. */
void loaded_keep(struct weightd_train *t);
/* 1: the process before this one came so far, and t->loaded and the buffers are what it had; 0: it did not. */
int loaded_find(struct weightd_train *t);

/* Waits until all ranks have loaded the checkpoint of t->loaded. -EPROTOTYPE: one loaded another. Errors of waits. */
int loaded_settle(struct weightd_train *t);

/* The job is at the step of a checkpoint, 0: of none; so is this rank, unless it took steps. */
int loaded_adopt(struct weightd_train *t, uint64_t step);

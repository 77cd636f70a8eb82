/*
 * Loaded jobs
 *
 * A job that took no step gets the values of a checkpoint in two parts: each rank writes those of its own, then its
 * word; then rank 0 sets the words of all ranks to the step, as if they had just completed it. A rank that is killed before
 * that loads again.
 */
#pragma once

#include <stdint.h>

struct weightd_train;

/* The step whose gradients this rank has handed over, as far as the words are those of steps. */
uint64_t loaded_open(struct weightd_train *t);

/* Waits until all ranks have loaded the checkpoint of t->loaded. -EPROTOTYPE: one loaded another. Errors of waits. */
int loaded_settle(struct weightd_train *t);

/* The job is at the step of a checkpoint, 0: of none; so is this rank, unless it took steps. */
int loaded_adopt(struct weightd_train *t, uint64_t step);

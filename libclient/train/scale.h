/*
 * The loss scale
 *
 * A function of the words in the job alone: each rank computes it for itself from the decision that all of them make,
 * and commits it with the step.
 */
#pragma once

#include "libclient/train/engine/arena.h"

/* The scale after `step` steps, in the words of the arena's rank: those of the last two steps that it committed. */
struct control_scale scale_at(const struct arena *a, uint64_t step);

/* Writes the scale that follows a step of the arena's rank, before its word `param`. `has_nan`: the loss was not a number. */
void scale_commit(const struct arena *a, uint64_t step, bool has_nan, bool has_overflowed);

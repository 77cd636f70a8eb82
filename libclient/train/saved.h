/*
 * Saved states
 *
 * State that a step commits beside the parameters: that of the caller, its buffers, and the arguments of the update, which
 * any rank that finishes the step needs.
 */
#pragma once

#include <stdint.h>

#include "weightd-train.h"

struct weightd_train;

/* Saves them for a step that the rank did not hand over yet. */
void saved_write(struct weightd_train *t, const struct weightd_update *u, uint64_t step);

/* Values that the caller gave its buffers after the last step: a restart, and a save, find them with that step. */
void saved_write_buffers(struct weightd_train *t);

/* Gives the caller's buffers the values of a step that was handed over. -EUCLEAN, with a sentence. */
int saved_restore(struct weightd_train *t, uint64_t step);

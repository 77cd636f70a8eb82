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

/* The buffers alone, between steps: those of a step that was handed over change. */
void saved_write_buffers(const struct weightd_train *t, uint64_t step);
/* Gives the caller's buffers the values that were saved so. */
void saved_read_buffers(struct weightd_train *t, uint64_t step);

/* Gives the caller's buffers the values of a step that was handed over. -EUCLEAN, with a sentence. */
int saved_restore(struct weightd_train *t, uint64_t step);

/*
 * Values of the caller
 *
 * First values, and those written between steps. Rank 0 writes parameters into all ranges that have them: copies of PARAM,
 * MASTER, and FROZEN. The ranges are mapped writable as a whole for that time alone.
 */
#pragma once

#include <stdint.h>

#include "libclient/train/plan/plan.h"

struct weightd_train;

/* The entries of t->filled: PARAM, then MASTER, then FROZEN. */
uint32_t fill_ranges(const struct weightd_plan *p);

/* Writes the values of a parameter, as weightd_train_fill() takes them. */
int fill_param(struct weightd_train *t, uint32_t tensor, const void *data);
/* Likewise of a buffer, in this process. */
int fill_own_buffer(struct weightd_train *t, uint32_t tensor, const void *data);
/* Unmaps all ranges. */
void fill_end(struct weightd_train *t);

/*
 * Strategies: the rows of a table, by which plans differ
 */
#pragma once

#include <stdbool.h>

#include "weightd-train.h"

struct strategy {
	const char *name;
	enum weightd_placement update; /* of MOMENTS, and of the work of the update */
	bool has_copies; /* each rank has a PARAM of its own */
	bool can_fuse;
	bool can_lag; /* staleness */
};

/* NULL: unknown. */
const struct strategy *strategy_find(const char *name);

/* "'shared', 'zero1' or 'replicated'", for sentences. */
#define STRATEGY_NAMES "'shared', 'zero1' or 'replicated'"

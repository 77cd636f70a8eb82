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
	bool pools_grads; /* GRAD is one bucket */
	bool has_units; /* parameters are gathered unit by unit, where there are several nodes */
};

/* NULL: unknown. */
const struct strategy *strategy_find(const char *name);

/* For sentences. */
#define STRATEGY_NAMES "'shared', 'zero1', 'zero2', 'zero3' or 'replicated'"

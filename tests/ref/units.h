/*
 * Units of a model: consecutive modules whose parameters are gathered at once
 *
 * Opens and closes them around the modules of a pass. With several levels, unit 0 is the root, which stays open to the end of
 * a pass, and every so many of the others are nested in the one before.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <weightd-train.h>

#include "tests/ref/task.h"

#define UNITS_NONE UINT32_MAX

struct units {
	uint32_t of_module[MODEL_MODULES]; /* UNITS_NONE: it has no trained parameters */
	uint32_t levels[MODEL_MODULES]; /* by unit */
	uint32_t n, n_levels;
	uint32_t open[WEIGHTD_LEVELS_MAX]; /* by level */
	/* Called once a unit is open. */
	void (*opened)(void *arg, uint32_t unit);
	void *arg;
};

void units_init(struct units *u, const struct task *task, const struct model *m);
/*
 * Closes the open units but those around `unit`, or all with UNITS_NONE, then opens what is missing of those and the unit.
 * Returns the result of the first call that failed.
 */
int units_move(struct units *u, struct weightd_train *t, uint32_t unit, enum weightd_pass pass);

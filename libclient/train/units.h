/*
 * Units: parameters that are gathered for forward and backward
 *
 * PARAM is sharded over nodes (plan_shards_params()). A unit has a window of addresses in this process, which stay the same: it
 * shows the unit's room in GATHERED between open and close, and faults else. A room keeps the last unit that was fetched into it, so
 * that this one is not fetched again in the same step.
 *
 * Fetches, and sums of buckets over nodes, are numbered in the order in which this rank asks for them. A process that was started anew
 * repeats the passes of its step, with the same numbers: exchanges that its predecessor completed are past, and their units are
 * shown from private memory, which has all parameters of the step; see exchange_catch_up().
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct weightd_train;

/* A room, in this step. */
struct unit_room {
	uint32_t unit; /* 1 + the one that was asked for last; 0: none was */
	uint64_t position; /* of its FETCH: control_exchange() */
};

struct units {
	uint8_t *windows; /* NULL: the plan does not shard parameters */
	uint64_t windows_size;
	uint64_t *offsets; /* of units in `windows`: whole pages */
	bool *is_open; /* by unit */
	struct unit_room *rooms;
	uint64_t step; /* that rooms and n_asked are of */
	uint64_t n_asked; /* the number of the last exchange; above CONTROL_PASSES once passes have begun */
	uint64_t past; /* the last exchange that the process before completed in that step */
	uint8_t *caught_up; /* all parameters of the step, from element 0 on; NULL: not needed yet */
	bool is_lost; /* the order of the ranks is */
};

/* A rank may be late because it is somewhere else. */
#define UNITS_CAUSE "opens units in another order than this rank"
/* "rank 1 was started again and is in the passes of step 4, while rank 0 ..." */
#define UNITS_SKIPPED                                                                              \
	"evaluates or publishes before them, where it waits in vain; call these at the "           \
	"beginning of a step, where a rank that is started again repeats them; start this "        \
	"rank again"

int units_init(struct weightd_train *t);
/* `units` of zeros is fine. */
void units_deinit(struct weightd_train *t);
/* The address of an element, which can be read while its unit is open. */
const void *units_param(const struct weightd_train *t, uint64_t element);
/*
 * The passes of the step that comes next begin, unless they have: what was gathered before is forgotten, so that they ask for
 * the same whether a rank evaluated or was started anew behind that. Waits for what this rank asked for before. -EINVAL: a
 * unit is open, of an evaluation. Errors of waits.
 */
int units_begin_passes(struct weightd_train *t);
/* The last exchange before the passes that this rank completed in the step of `line`, where that is CONTROL_PASSES. */
uint64_t units_gathered(const struct weightd_train *t, uint64_t line);
/* The number of the next exchange in the step that comes next, which this rank asks for now. */
uint64_t units_count(struct weightd_train *t);
/* The number of the last exchange that was asked for in the step that comes next. 0: none was. */
uint64_t units_asked(const struct weightd_train *t);
/* True: a unit was opened since the last step. */
bool units_were_opened(const struct weightd_train *t);
/* -ENOTRECOVERABLE with a sentence: the order is lost. -EINVAL: a unit is open. Before a step, and what else needs all ranks. */
int units_check(const struct weightd_train *t);
/* The order is lost, by a failure; returns `r`, and leaves its sentence. */
int units_lose(struct weightd_train *t, int r);

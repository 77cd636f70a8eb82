/*
 * Planners
 *
 * What shards on some nodes need to become shards on others: ipc/reshard, behind a socket.
 */
#pragma once

#include "server/sync/local/task.h"

#define PLANNER_LAYOUT_MAX                                                                         \
	((uint64_t)64 << 20) /* bytes of a layout, for the quarter of a million tensors there can be */

struct planning;

/* NULL is fine. */
struct planning *planning_free(struct planning *p);

int planner_take(struct task *e, const struct json_packet *t, struct fault *f);

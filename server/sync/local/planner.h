/*
 * Planners
 *
 * Computes how shards on some nodes become shards on others: ipc/reshard, behind a socket.
 */
#pragma once

#include "server/sync/local/task.h"

/* Bytes of a layout: room for RESHARD_TENSORS_MAX tensors. */
#define PLANNER_LAYOUT_MAX ((uint64_t)64 << 20)

struct planning;

/* Accepts NULL. */
struct planning *planning_free(struct planning *p);

int planner_handle(struct task *e, const struct json_packet *t, struct fault *f);

/*
 * Reshards in a simulated world: each source sends each target an equal part of its bytes, and a
 * target concatenates these.
 */
#pragma once

#include "sim_collective.h"

#define SIM_SHARDS "shards" /* the buffer of the results */

/*
 * Reshards the newest versions of SIM_BUFFER of the source nodes to the target nodes; a bit for
 * each. Returns agent_reshard().
 */
int sim_reshard(struct sim *s, unsigned node, unsigned sources, unsigned targets,
		char ret_sync[SYNC_ID_SIZE]);
/* NULL: the content is no shard. */
const struct sim_made *sim_shard_of(const struct sim *s, uint64_t content);

/* Called by sim.c and sim_jobs.c: a message for a planner. */
void sim_planner_told(struct job *j, const json_t *message, const int *fds, unsigned n_fds);
/* A sink has verified its result of that content. */
void sim_shard_verified(struct sim *s, uint64_t content);
/* It is a shard, and all others of its sync were verified. */
bool sim_shard_may_be_published(const struct sim *s, uint64_t content);

/*
 * Reshards in a simulated world: each source gives each target as many of its bytes as any other, and a target has what
 * all gave it one behind the other.
 */
#pragma once

#include "sim_collective.h"

#define SIM_SHARDS "shards" /* the buffer of those that come about */

/*
 * Makes shards of the newest that these nodes have of SIM_BUFFER on those nodes; a bit for each. -errno of agent_reshard().
 */
int sim_reshard(struct sim *s, unsigned node, unsigned sources, unsigned targets,
		char ret_sync[SYNC_ID_SIZE]);
/* NULL: the content is no shard. */
const struct sim_made *sim_shard_of(const struct sim *s, uint64_t content);

/* For sim.c and sim_jobs.c: a planner is told something. */
void sim_planner_told(struct job *j, const json_t *message, const int *fds, unsigned n_fds);
/* What a sink made of that content it has verified. */
void sim_shard_verified(struct sim *s, uint64_t content);
/* It is a shard, and all others of its sync were verified. */
bool sim_shard_may_be_published(const struct sim *s, uint64_t content);

/*
 * Averages in a simulated world: what all have, and what becomes of it.
 */
#pragma once

#include "sim_collective.h"

/* A node's weightd has a version of its own, which nobody pushed; false: somebody makes one just now. */
bool sim_train(struct sim *s, unsigned node, const char *buffer);
/* Averages what all have. -errno of agent_average(). */
int sim_average(struct sim *s, unsigned node, const char *buffer, char ret_sync[SYNC_ID_SIZE]);
/* NULL: the content is no average. */
const struct sim_made *sim_average_of(const struct sim *s, uint64_t content);

/* Averages in a simulated world. */
#pragma once

#include "sim_collective.h"

/* A node's weightd publishes a version outside of any push; false: another one is being made. */
bool sim_train(struct sim *s, unsigned node, const char *buffer);
/* Requests an average of all nodes. Returns agent_average(). */
int sim_average(struct sim *s, unsigned node, const char *buffer, char ret_sync[SYNC_ID_SIZE]);
/* NULL: the content is no average. */
const struct sim_made *sim_average_of(const struct sim *s, uint64_t content);

/*
 * The watch
 *
 * One process listens to the local weightd as long as the agent lives, so that a version which is gone from there is
 * noticed when it goes, and not when somebody asks for it.
 */
#pragma once

#include "server/sync/state/agent_state.h"

/* Starts it where none runs and it is time to, and says when to come again; 0: there is no need. */
uint64_t watch_step(struct agent *a, uint64_t now);
void watch_end(struct agent *a);

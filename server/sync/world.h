/*
 * The world
 *
 * All that is real about an agent: one loop, the connections, the processes, the record and the control socket, and
 * struct env over them. Started once, and ended by a signal.
 */
#pragma once

#include "server/sync/config.h"

/* Loads what `config` names and checks it, no more. -errno: it was logged. */
int world_check(const struct config *config);

/* Runs until SIGTERM or SIGINT. -errno: it was logged. */
int world_run(const struct config *config);

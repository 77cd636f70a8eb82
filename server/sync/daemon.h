/*
 * The daemon
 *
 * All that is real about an agent: one loop, the connections, the processes, the commit log and the control socket, and
 * struct env over them. Started once, and ended by a signal.
 */
#pragma once

#include "server/sync/config.h"

/* Loads what `config` names and checks it, no more. -errno: it was logged. */
int daemon_check(const struct config *config);

/* Runs until SIGTERM or SIGINT. -errno: it was logged. */
int daemon_run(const struct config *config);

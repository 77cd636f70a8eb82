/*
 * Reloading
 *
 * Reads the configuration again while the daemon runs. That happens on the worker, since looking up
 * users may wait for a directory service; a file with errors changes nothing. One reload at a time: what
 * is asked for meanwhile is done behind it, since the file may have changed after it was read.
 */
#pragma once

#include <stdbool.h>

#include "server/base/worker.h"
#include "server/config.h"

struct server;

struct reload {
	struct job job;
	struct config next; /* the job's */
	bool running;
	bool again;
};

/* Starts a reload of server::config from server::source. */
void reload_start(struct server *server);

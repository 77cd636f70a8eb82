/*
 * Reloading
 *
 * Reads the configuration again while the daemon runs. That happens on the worker, since looking up
 * users may wait for a directory service; a file with errors changes nothing. One reload at a time: what
 * is asked for meanwhile is done behind it, since the file may have changed after it was read.
 */
#pragma once

#include <stdbool.h>

#include "server/base/threads/worker.h"
#include "server/state/config.h"

struct server;

struct reload {
	struct server *server;
	struct config_source source;
	struct job job;
	struct config next; /* the job's */
	bool running;
	bool again;
};

void reload_init(struct reload *r, struct server *server, const struct config_source *source);

/* Reads server::config again from reload::source. */
void reload_start(struct reload *r);

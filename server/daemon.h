/*
 * The daemon
 *
 * weightd itself: the shared state, and the parts that stand above it. It starts them, gives each what it may
 * call, serves, and ends them.
 */
#pragma once

#include "server/backend/cuda.h"
#include "server/base/loop.h"
#include "server/buffers/event.h"
#include "server/buffers/reaper.h"
#include "server/memory/layout_window.h"
#include "server/reload.h"
#include "server/requests/client_fds.h"
#include "server/requests/held_killer.h"
#include "server/requests/listener.h"
#include "server/state/config.h"
#include "server/state/server.h"

struct daemon {
	struct server server;
	struct cuda cuda;
	struct layout_window layout_window;
	struct client_fds client_fds;
	struct reaper reaper;
	struct held_killer held_killer;
	struct events events;
	struct listener listener;
	struct source signals;
	struct reload reload;
};

struct daemon_options {
	const char *socket; /* NULL: that of the configuration */
	struct config *config; /* the daemon takes its overrides */
	struct config_source source; /* to read it again */
};

/* Logs its failures. */
int daemon_init(struct daemon *d, const struct daemon_options *options);
void daemon_deinit(struct daemon *d);

/*
 * Serves until SIGTERM, after which a successor may use what is in the store, or SIGINT, after
 * which there is no successor. SIGHUP reads the configuration again.
 */
int daemon_run(struct daemon *d);

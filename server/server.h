/*
 * The server
 *
 * What everything else hangs on: the loop and the worker, who is connected, which buffers have a name,
 * and the counters. All of it belongs to the loop's thread.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "ipc/base/list.h"
#include "server/backend/cuda.h"
#include "server/base/loop.h"
#include "server/base/notify.h"
#include "server/base/worker.h"
#include "server/client_fds.h"
#include "server/config.h"
#include "server/event.h"
#include "server/inherit.h"
#include "server/listener.h"
#include "server/quota.h"
#include "server/reaper.h"
#include "server/reload.h"
#include "server/store.h"

struct server {
	struct loop loop;
	struct worker worker;
	struct worker wake_worker; /* wakes readers that sleep on head pages */
	struct worker sealer; /* a seal may wait for pinned pages, which must not hold up the rest */
	struct client_fds client_fds;
	struct cuda cuda;
	const struct slot_ops *slot_ops; /* see slot.h */
	struct notify notify;
	struct store store;
	struct listener listener;
	struct source signals;
	struct config config; /* its overrides are the quota's */
	struct config_source source;
	struct reload reload;
	struct quota quota;
	struct reaper reaper;
	struct events events;
	struct list sessions;
	struct list buffers; /* with a name */
	struct list removed; /* without one, and not free yet */
	struct list waiters;
	struct list paused_readers; /* see reader_pause.c */
	struct session *actor; /* whose doing what happens now is; NULL: nobody's */
	bool stopping; /* and all that survives us is to be left as it is */
	bool final; /* nothing is to survive us: there will be no successor */
	uint64_t instance; /* random */
	uint64_t started_ns;
	uint64_t last_id;
	uint64_t n_sessions;
	uint64_t n_buffers;
	uint64_t n_leases;
	uint64_t n_slot_bytes;
	uint64_t n_table_bytes;
	uint64_t n_quarantined; /* descriptors that came back and match nothing */
};

struct server_options {
	const char *socket; /* NULL: that of the configuration */
	struct config *config; /* whose overrides the server takes */
	struct config_source source; /* to read it again */
};

/* Logs its failures. */
int server_init(struct server *s, const struct server_options *options);
void server_deinit(struct server *s);

/*
 * Serves until SIGTERM, behind which a successor may take up what is in the store, or SIGINT, behind which
 * nobody will. SIGHUP reads the configuration again.
 */
int server_run(struct server *s);

/* Makes server::config hold from now on, with the overrides of `c`, which are taken. */
void server_apply_config(struct server *s, struct config *c);

/* Ids of buffers, slots, writers and leases: never twice, also not after a restart. */
uint64_t server_next_id(struct server *s);

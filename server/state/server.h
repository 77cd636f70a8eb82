/*
 * The state of the server
 *
 * Shared by all parts: the loop and the workers, the store, limits, and the lists of sessions, buffers
 * and writer groups. All of it belongs to the loop's thread. The parts above it (daemon.h) are declared here
 * by name only.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "ipc/base/list.h"
#include "ipc/wire.h"
#include "server/base/freeing.h"
#include "server/base/headroom.h"
#include "server/base/id_index.h"
#include "server/base/loop.h"
#include "server/base/notify.h"
#include "server/base/threads/crew.h"
#include "server/base/threads/worker.h"
#include "server/restart/store.h"
#include "server/state/config.h"
#include "server/state/cost.h"
#include "server/state/quota.h"
#include "server/state/turns.h"

struct client_fds;
struct cuda;
struct events;
struct held_killer;
struct reaper;
struct layout_window;
struct session;
struct slot_ops;

struct server {
	struct loop loop;
	struct worker worker;
	struct worker freer; /* closes what frees memory with its last descriptor */
	struct freeings freeings;
	struct layout_window *layout_window; /* the worker's */
	const void *providing; /* the worker's: the memory that it found room for last */
	struct crew crew; /* of the worker */
	struct worker wake_worker; /* wakes readers that sleep on head pages */
	struct worker sealer; /* a seal may wait for pinned pages, which must not hold up the rest */
	struct notify notify;
	struct store store;
	struct config config; /* its overrides are the quota's */
	struct quota quota;
	struct costs costs;
	struct turns turns; /* sessions with something to do */
	struct cuda *cuda;
	struct client_fds *client_fds;
	struct reaper *reaper;
	struct held_killer *held_killer;
	struct events *events;
	const struct slot_ops *slot_ops; /* see slot.h */
	void (*held_changed)(
		struct server *s); /* charges of `held` may have moved; NULL: of no interest */
	struct list sessions;
	struct list refusals; /* clients to be refused in their users' turns */
	uint64_t n_refusals;
	struct list buffers; /* with a name */
	struct list removed; /* without one, and not free yet */
	struct id_index slots; /* all, also those that are being freed */
	struct id_index host_memory; /* a slot of each memfd, by its inode */
	struct list untallied; /* buffers; see tally.h */
	struct tally {
		uint64_t kept; /* bytes of versions that are only kept, and of spare ones */
		uint64_t leaving; /* held by leases on versions that ended, or about to be free */
		uint64_t orphan; /* held without a lease */
	} tally;
	struct list held; /* versions that readers are charged for, the longest so first */
	struct list groups; /* with a name */
	struct list removed_groups; /* without one, and not free yet */
	struct list waiters;
	struct list paused_readers;
	struct session *actor; /* the session of the request in progress, or NULL */
	bool stopping; /* and all that survives us is to be left as it is */
	bool final; /* nothing is to survive us: there will be no successor */
	uint64_t instance; /* random */
	uint64_t started_ns;
	uint64_t last_id;
	uint64_t n_sessions;
	uint64_t n_objects,
		most_objects; /* see server_count_object(); the most since memory was given back */
	uint64_t n_buffers;
	uint64_t n_leases;
	uint64_t n_slot_bytes; /* in slots, and in parts of jobs */
	uint64_t n_table_bytes;
	struct headroom headroom;
	uint64_t memory; /* of the machine, or as much as its cgroups allow; found with `headroom` */
	uint64_t headroom_ns; /* when these were found; 0: never */
	uint64_t started_real_ns; /* CLOCK_REALTIME */
	uint64_t max_descriptors; /* RLIMIT_NOFILE */
	uint64_t refused[WIRE_REFUSALS];
	uint64_t n_quarantined; /* descriptors from the store that match nothing */
};

/* Makes server::config hold from now on, with the overrides and the names of `c`, which are taken. */
void server_apply_config(struct server *s, struct config *c);

/* Counts a request or connection that was refused, for a reason that has a count. */
void server_count_refusal(struct server *s, int error);

/*
 * Counts a session, buffer or job that there is now, by 1, or that is no more, by -1. Returns freed memory to the kernel once
 * most of many are gone.
 */
void server_count_object(struct server *s, int change);

/* Ids of buffers, slots, writers, leases and jobs: never twice, also not after a restart. */
uint64_t server_next_id(struct server *s);

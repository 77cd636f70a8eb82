/*
 * Writer groups
 *
 * A job of the wire: a name, a token, memory that several processes of one user write, and those processes, its
 * members. The memory is made for the first join and outlives all members. weightd never looks into it, but for
 * the step that listings show.
 *
 * Work on a thread or a question to the service manager has the group while it is busy; requests that depend on
 * it wait as callers. A group without a name stays until no process has its memory.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/list.h"
#include "ipc/wire.h"
#include "server/base/freeing.h"
#include "server/base/loop.h"
#include "server/memory/kept_memfd.h"
#include "server/restart/store.h"
#include "server/state/access.h"
#include "server/state/quota.h"

struct group_caller;
struct group_manifest;
struct group_memory;
struct server;

struct writer_group {
	struct list link; /* server::groups, in the order of ids, or server::removed_groups */
	struct server *server;
	uint64_t id;
	char name[WIRE_NAME_SIZE];
	struct access access;
	uint8_t token[WIRE_TOKEN_SIZE];
	uint32_t n_ranks;
	int64_t linger_ms; /* 0: for ever */
	uint64_t created_ns; /* CLOCK_REALTIME, like the next */
	uint64_t vacant_ns; /* since when there is neither a member nor a caller; 0: there is one, or it is being made */
	struct timer timer; /* while vacant: the end of linger_ms; without a name: the next look at its memory */
	uint64_t delay_ns; /* of that look */
	struct list members;
	uint64_t done[WIRE_JOB_RANKS_MAX / 64]; /* a bit for each rank that left */
	struct list callers; /* requests that wait for it */
	struct group_caller *maker; /* the caller that the memory is made for, while that lasts */
	struct group_memory *memory; /* NULL: none yet */
	struct kept_memfd description; /* without references: none yet */
	uint8_t hash[WIRE_HASH_SIZE]; /* of the description, as the ranks have it */
	bool ready; /* memory and description are whole and kept */
	bool busy; /* the worker, the barrier or the wait has it */
	bool has_waited; /* for all memory that was being freed */
	bool kept; /* in the store */
	bool removed;
	struct barrier barrier;
	struct freeing_wait wait;
	struct group_manifest *manifest;
	int manifest_fd; /* -1: the store has it */
	struct charge charge;
	struct charge descriptor;
	struct store_reservation room; /* for memory and description in the making */
	struct charge work; /* while a request for it is in work; see in_work.h */
};

/* A valid request makes it: with a name and an owner, and nothing in the store. 0, QUOTA_EXCEEDED or -errno. */
int writer_group_new(struct server *server, const struct wire_job_create *create,
		     const struct access *access, struct writer_group **ret);

/*
 * Recovers one from the record in force of a manifest, which it takes on success, without its memory. Charges in
 * any case. One without a name gets into server::removed_groups.
 */
int writer_group_recover(struct server *server, uint64_t id, struct group_manifest *m,
			 struct writer_group **ret);

struct writer_group *writer_group_find(struct server *server, const char *name);
struct writer_group *writer_group_find_id(struct server *server, uint64_t id);

/* Compares in a time that does not depend on the token. */
bool writer_group_has_token(const struct writer_group *g, const uint8_t token[WIRE_TOKEN_SIZE]);

/* Commits its state. */
void writer_group_save(struct writer_group *g);

/* Puts its manifest into the store. */
void writer_group_keep(struct writer_group *g);

/* A worker, the store or memory that is being freed gets it, until writer_group_take_back(). */
void writer_group_set_busy(struct writer_group *g);

/* The request that it was in work for is answered. */
void writer_group_leave_work(struct writer_group *g);

/*
 * Takes the group back from the worker or the barrier. False: it was removed meanwhile, and is freed; or weightd stops,
 * and leaves it to its successor.
 */
bool writer_group_take_back(struct writer_group *g);

/* Frees memory and description in the making. */
void writer_group_unmake(struct writer_group *g);

/* Lets the linger time run if there is neither a member nor a caller, or stops it; the caller saves. */
void writer_group_settle(struct writer_group *g);

/* Ranks with a member; ranks that left. */
unsigned writer_group_n_present(const struct writer_group *g);
unsigned writer_group_n_done(const struct writer_group *g);
/* The caller saves. */
void writer_group_set_done(struct writer_group *g, uint32_t rank, bool done);

/*
 * Takes the name away, and perhaps frees it: members are none any more, callers receive -ESTALE, and memory is freed once no process
 * has it. Audited, for `why` if weightd does it by itself.
 */
void writer_group_drop(struct writer_group *g, const char *why);

/* At the end of weightd: waits neither for the store nor for processes that have the memory. */
void writer_group_end(struct writer_group *g);

/* Frees one that was removed, now or once no process has its memory. */
void writer_group_reap(struct writer_group *g);

/* Bytes in parts of all groups, whatever their state; part of them is held by processes after a removal. */
uint64_t writer_groups_bytes(const struct server *server);
uint64_t writer_groups_leaving_bytes(const struct server *server);

/*
 * Writers
 *
 * A version in the making, and the session that makes it:
 *
 *	checking (the layout) -> [measuring (what can be free), pausing (the readers)] ->
 *	providing (the memory) -> keeping (it in the store) -> filling (by the client) ->
 *	sealing -> a version
 *
 * All but filling and pausing is work on a thread or a question to the service manager, during
 * which the writer belongs to it: a session that ends meanwhile abandons the writer, and the end of
 * the work frees it. A writer that ends before it became a version takes its memory with it, and
 * its buffer too if that never held anything. From keeping on it is in the manifest: a restart
 * leaves it without a session, which has some time to return.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/list.h"
#include "ipc/head.h"
#include "ipc/wire.h"
#include "server/backend/backend.h"
#include "server/base/freeing.h"
#include "server/base/loop.h"
#include "server/base/threads/worker.h"
#include "server/memory/layout_validation.h"
#include "server/restart/store.h"
#include "server/state/quota.h"

struct buffer;
struct manifest_writer;
struct reader_pause_ops;
struct session;
struct slot;
struct layout_table;
struct version;
struct version_files;

struct writer {
	struct list link; /* session::writers */
	struct session *session; /* NULL: abandoned, or not back yet */
	struct timer timer; /* limits the wait for the session, or for readers to pause */
	uint64_t id;
	enum wire_op op; /* the create that it answers */
	uint64_t cookie; /* the client's name for it, until it has the id */
	uid_t uid;
	pid_t pid;
	struct buffer *buffer;
	struct slot *slot; /* in place: the target's, borrowed */
	struct version *target; /* the version that is written in place; NULL: a new one is made */
	struct layout_table *table;
	struct version_files *files; /* at first those of the newest version; NULL: none */
	struct version_files *new_files; /* on their way to the store, and then `files` */
	uint64_t other_files; /* id of those that come or go; 0: none */
	struct version *version; /* room for what this becomes */
	struct job job;
	struct barrier barrier;
	struct freeing_wait wait;
	bool busy; /* the job, the barrier or the wait has us */
	bool has_waited; /* for all memory that was being freed */
	bool kept; /* in the manifest */
	bool handed_out; /* the client has, or had, the writable descriptor */
	uint64_t provide_until; /* bytes of the slot that the request waits for */
	enum head_state state_before; /* the buffer's state before a write in place */
	uint32_t flags; /* WIRE_CREATE_* */
	enum wire_policy policy;
	int64_t timeout_ms; /* time for readers to pause */
	struct backend_memory measured; /* memory of the versions to be replaced */
	uint64_t n_free; /* bytes there */
	const struct reader_pause_ops *pause_ops;
	bool pausing; /* they are asked to; in place, until the update is over */
	uint64_t pause_began_ns;
	uint64_t pause_deadline_ns; /* 0: none */
	uint64_t data_offset; /* of an image; 0: a flat version is made */
	uint32_t keep; /* keep of the buffer, from this version on; 0: as before */
	bool reused; /* the slot's old bytes may still be in it */
	bool spoiled; /* sealed and not whole, or distrusted: fit for nothing but the end */

	struct layout_validation layout; /* until it is a table */

	uint64_t publish_began_ns;
	bool has_digest;
	uint8_t digest[WIRE_HASH_SIZE];
	struct charge charge; /* charge for the future version */
	struct store_reservation room; /* until it is kept */
	struct charge work; /* while its request is in work; see in_work.h */
};

/* NULL: out of memory. The buffer has it; no session has it yet. */
struct writer *writer_blank(struct buffer *buffer, uint64_t id);

/* Ends it. NULL. */
struct writer *writer_free(struct writer *w);

/*
 * Recovers a writer of the manifest, which waits for its session. Takes slot, table and files (in
 * place the slot is the current version's) on success.
 */
int writer_recover(struct buffer *buffer, const struct manifest_writer *saved, struct slot *slot,
		   struct layout_table *table, struct version_files *files);

/* A worker, the store or memory that is being freed gets it. */
void writer_set_busy(struct writer *w);

/* Its request is answered, or waits for other clients. */
void writer_leave_work(struct writer *w);

/* Has a worker do a step of it. `done` gets the writer back by writer_take_back(). */
void writer_submit(struct writer *w, struct worker *worker, int (*step)(struct job *),
		   void (*done)(struct job *, int));
/* NULL when the session has ended meanwhile, and then the writer is freed too. */
struct writer *writer_take_back(struct writer *w);

/* Writes in place of `target`, until it is left: then it is its readers' again. */
void writer_aim(struct writer *w, struct version *target);
void writer_leave_target(struct writer *w);

/* Answers the session's request: the memory was lost. */
void writer_fail_for_loss(struct writer *w);

/* Ends the writer. A job of it is cancelled first, and ends it then. */
void writer_abandon(struct writer *w);

/* Does the same for a writer without a session. Waits neither for its client nor for the store. */
void writer_end(struct writer *w);

/* NULL: the session has no such writer. */
struct writer *writer_find(struct session *session, uint64_t id);

/* Gives a writer without a session to this one, which has the same user. False: it is not for it. */
bool writer_adopt(struct writer *w, struct session *session);

/* Ends a writer without a session if its client is dead, as the kernel shows. True: it was freed. */
bool writer_bury(struct writer *w);

/*
 * Called at a change of the buffer's permissions: its new readers must not find the old bytes of a
 * reused slot. The caller saves the buffer.
 */
void writer_distrust(struct writer *w);

/*
 * Called at a change of the buffer's owner to `uid`, likewise: the writer does not publish in a buffer of another user
 * than the one it was begun for.
 */
void writer_disown(struct writer *w, uid_t uid);

/*
 * Buffers
 *
 * A name on a device, and its versions. One of them is current: attach returns it. The others live
 * while they are among the `keep` newest or have readers. The state of a buffer is in its manifest:
 * each change ends in buffer_save() (buffer_commit.h), before any client receives it. A buffer
 * object outlives its name: its last version or its writer frees it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ipc/base/list.h"
#include "ipc/head.h"
#include "ipc/wire.h"
#include "server/buffers/head_waker.h"
#include "server/buffers/version.h"
#include "server/memory/slot.h"
#include "server/restart/manifest.h"
#include "server/state/access.h"
#include "server/state/audit.h"
#include "server/state/quota.h"
#include "server/state/server.h"

struct inherit;
struct server;
struct writer;

#define BUFFER_KEEP_MAX 32
/* That exist or leave: what a manifest has room for, less one that is in the making. */
#define BUFFER_VERSIONS_MAX (MANIFEST_VERSIONS - 2)

struct buffer {
	struct list link; /* server::buffers while it has its name, then server::removed */
	struct server *server;
	unsigned n_refs; /* its name, its versions, its writer */
	uint64_t id;
	char name[WIRE_NAME_SIZE];
	char device[WIRE_DEVICE_SIZE];
	const struct backend *backend;
	struct access access;
	uid_t store_uid; /* its user in the store: the owner that made it, or had it when weightd started */
	unsigned generation; /* version of `access`: grows with each change */
	uint32_t keep;
	bool exclusive; /* one slot, never sealed, written in place */
	bool reusable; /* slots are not sealed, and are used again */
	bool removed;
	enum head_state state;
	uint64_t next_version;
	uint64_t current; /* 0: nothing published */
	uint64_t passed_over; /* that was written over without waiting for all its readers; 0: none */
	struct list versions; /* those there are, oldest first */
	struct list leaving; /* those that ended and have memory still */
	unsigned n_versions;
	unsigned n_leaving;
	struct version *spare; /* one that left and waits for slot_reuse; NULL for none */
	uint64_t grace_ns; /* until then readers of an earlier weightd may return; see reader_pause.c */
	struct writer *writer; /* writer of the next version, or NULL */
	struct manifest *manifest;
	int manifest_fd; /* until it is kept */
	struct head *head;
	int head_fd; /* writable, until it is kept; after a restart until there is a reader */
	struct head_waker waker; /* wakes readers that sleep on the head */
	int head_reader_fd; /* read-only, see buffer_head() */
	bool kept; /* head and manifest are in the store */
	struct charge charge;
	struct charge descriptors;
	struct list tally_link; /* server::untallied */
	struct tally tally; /* its part of server::tally */
	struct list reap_link; /* reaper::buffers, from its first version that leaves on */
};

/* The buffer of that name, NULL for none; or of that id. */
struct buffer *buffer_find(struct server *server, const char *name, const char *device);
struct buffer *buffer_find_id(struct server *server, uint64_t id);

/* Makes a buffer without versions and gives it its name. 0, QUOTA_EXCEEDED or a negative errno. */
int buffer_new(struct server *server, const char *name, const char *device,
	       const struct backend *backend, const struct access *access, struct buffer **ret);

/*
 * Recovers a buffer from a manifest of the store. On success, takes the memory of the manifest, and
 * the head. The buffer has neither versions nor writer yet, and its head has not been rewritten.
 * -EBADMSG, -ENODEV and others.
 */
int buffer_recover(struct server *server, uint64_t id, struct manifest *m, int head_fd,
		   struct buffer **ret);

/*
 * The read-only descriptor of the head page, for readers. Opened for the first one: a thousand
 * buffers must be there at once after a restart. Negative where that fails.
 */
int buffer_head(struct buffer *b);

/* Gives it to another user, and charges that user whatever its limits; the caller saves. -ENOMEM. */
int buffer_chown(struct buffer *b, uid_t uid);

void buffer_ref(struct buffer *b);
void buffer_unref(struct buffer *b);

/* Returns the place of its slots. */
struct slot_place buffer_place(const struct buffer *b);

/* True until buffer_drop(). */
bool buffer_has_name(const struct buffer *b);

/* The version attach gets, NULL before the first publish; the latest there is; the one of that number. */
struct version *buffer_current(const struct buffer *b);
struct version *buffer_newest(const struct buffer *b);
struct version *buffer_version(const struct buffer *b, uint64_t number);

/* True for a version that only its place in the list holds. */
bool buffer_only_keeps(const struct buffer *b, const struct version *v);

/* Puts manifest and head into the store, if they are not there already. */
void buffer_keep(struct buffer *b);

/* Audits an action on the buffer. `peer` NULL: by weightd itself. */
void buffer_audit(const struct buffer *b, enum audit_action action, const struct channel_peer *peer,
		  uint64_t version);

/* True for its device; for NULL, which stands for all. */
bool buffer_is_on(const struct buffer *b, const char *device);

/* WIRE_BUFFER_*. */
uint32_t buffer_flags(const struct buffer *b);

/* CLOCK_REALTIME. */
uint64_t buffer_now_ns(void);

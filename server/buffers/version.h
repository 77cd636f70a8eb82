/*
 * Versions
 *
 * A published set of tensors. A version exists while it is on its buffer's list: attach finds it,
 * rollback can make it current. Then it ends, for one of the reasons of enum wire_end, and leaves:
 * its memory is freed when its last lease is over and the kernel shows that no process has it open
 * or mapped. An aborted write leaves in the same way, as a version without a number.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "ipc/base/list.h"
#include "ipc/wire.h"
#include "server/state/quota.h"

/* The leases of one user on a version: while it has any. */
struct hold {
	struct list link; /* version::holds */
	struct list leases; /* lease::hold_link, the earliest first */
	uid_t uid;
};

struct buffer;
struct cost;
struct slot;
struct layout_table;
struct version_files;

struct version {
	struct list link; /* buffer::versions, or buffer::leaving */
	struct buffer *buffer; /* referenced */
	uint64_t number; /* 0: never published */
	uint64_t writer; /* id of its writer */
	struct slot *slot;
	struct layout_table *table;
	struct version_files *files; /* NULL: none */
	uint64_t published_ns; /* CLOCK_REALTIME */
	uint64_t ended_ns; /* likewise; 0: it is there */
	enum wire_end why;
	uid_t uid; /* publisher */
	pid_t pid;
	unsigned generation; /* generation of the buffer's permissions then */
	struct list leases; /* on it */
	unsigned n_leases;
	struct list holds; /* the same by user, in the order in which they began */
	uid_t last_reader; /* user of the last lease that ended, other than the slot's; -1: none */
	bool orphan; /* a process has it without a lease: it ended, or weightd was restarted */
	uid_t holder; /* the reader that is charged for it; -1: its publisher is */
	struct list held_link; /* server::held */
	struct cost *held_cost; /* the reader's; NULL: none */
	bool rewriting; /* a writer has its slot */
	bool has_digest;
	bool chosen; /* see server/requests/eviction.c */
	uint8_t digest[WIRE_HASH_SIZE];
	struct charge charge;
};

/* An empty one, on no list. NULL: out of memory. */
struct version *version_blank(void);

/* Puts `v`, filled in but for its buffer, on one of the buffer's lists, at the end. */
void version_add(struct version *v, struct buffer *b);

/* The user's hold on a version; NULL: none. */
struct hold *version_hold(const struct version *v, uid_t uid);

/* WIRE_VERSION_*. */
uint32_t version_flags(const struct version *v);
/* Those that a client with these WIRE_FEATURE_* knows: an earlier one hangs up at any other bit. */
uint32_t version_flags_for(const struct version *v, uint64_t features);

/* It is no more: from the buffer's list to those that leave. The caller saves the buffer, and reaps. */
void version_end(struct version *v, enum wire_end why);

/* Frees it and saves its buffer, which may go with it. It has no leases. */
void version_free(struct version *v);

/*
 * Manifests
 *
 * The state of a buffer in a form that outlives weightd: one memfd per buffer, in the store, mapped
 * by weightd alone. It holds two records with checksums. A commit writes the inactive record and
 * then activates it by one atomic store, so that a kill in between loses nothing. weightd commits
 * before it answers: a client never receives a promise that is not committed.
 */
#pragma once

#include <assert.h>
#include <stdatomic.h>
#include <stdint.h>

#include "ipc/wire.h"

#define MANIFEST_MAGIC 0x4e414d444847574bull
/*
 * The format. 2 has neither images nor files, and `companions` is zero; 3 may have them. A manifest is of format 2
 * until it gets the first of them, so that an earlier weightd still serves what it can.
 */
#define MANIFEST_ABI 3
#define MANIFEST_ABI_FLAT 2
#define MANIFEST_SIZE 32768
#define MANIFEST_VERSIONS 64

/* Parts of a version outside its slot; digests have the id of the slot. */
struct manifest_companions {
	uint64_t data_offset; /* bytes in front of the data; 0: the slot has the flat form */
	uint64_t files; /* id of the version's files; 0: none */
	uint64_t other_files; /* id of a writer's files on their way into the store or out of it; 0: none */
	uint8_t pad[WIRE_HANDLE_SIZE - 24];
};
static_assert(sizeof(struct manifest_companions) == WIRE_HANDLE_SIZE, "in the place of a handle");

/* A version, or one that was. */
#define MANIFEST_HELD 1u /* its slot and its table are in the store */
#define MANIFEST_DIGEST 2u
struct manifest_version {
	uint64_t number; /* 0: never published, and on its way out */
	uint64_t slot; /* ids of what is in the store */
	uint64_t table;
	uint64_t writer; /* id of its writer, and then of a lease on it */
	uint64_t data_size;
	uint64_t huge_bytes;
	uint64_t n_tensors;
	uint64_t published_ns;
	uint64_t ended_ns; /* 0: it is there */
	uint32_t flags;
	uint32_t why; /* enum wire_end */
	uint32_t uid, pid; /* publisher */
	uint32_t generation; /* generation of the permissions at publication */
	uint32_t reader; /* uid of the reader that is charged for it, plus 1; 0: its publisher is */
	uint8_t layout_hash[WIRE_HASH_SIZE];
	uint8_t digest[WIRE_HASH_SIZE];
	uint64_t map_size; /* part of the slot's location, like the next; the rest is the buffer's device */
	union {
		uint8_t handle[WIRE_HANDLE_SIZE]; /* of a buffer with MANIFEST_IPC, which has no companions */
		struct manifest_companions companions;
	};
};
static_assert(sizeof(struct manifest_version) == 200, "manifest_version is ABI");

/* A version in the making. */
#define MANIFEST_IN_PLACE 1u /* the slot is that of the current version, and the writer has it */
#define MANIFEST_RECYCLED 2u /* the slot was used before, and may hold old bytes */
#define MANIFEST_SPOILED 4u /* it is fit for nothing but the end */
struct manifest_writer {
	uint64_t id; /* 0: no writer */
	uint64_t cookie;
	uint64_t slot;
	uint64_t table;
	uint64_t data_size;
	uint64_t huge_bytes;
	uint32_t uid, pid;
	uint32_t keep;
	uint32_t flags; /* the three above */
	uint64_t map_size; /* likewise */
	union { /* likewise */
		uint8_t handle[WIRE_HANDLE_SIZE];
		struct manifest_companions companions;
	};
};
static_assert(sizeof(struct manifest_writer) == 136, "manifest_writer is ABI");

#define MANIFEST_REMOVED 1u
#define MANIFEST_EXCLUSIVE 2u
#define MANIFEST_REUSABLE 4u
#define MANIFEST_IPC 8u /* its memory is of the older kind */

struct manifest_record {
	uint8_t checksum[WIRE_HASH_SIZE]; /* over all that follows, up to the last version */
	uint64_t serial; /* grows by one at each commit */
	uint64_t current; /* version that attach gets, 0 for none */
	uint64_t next_version;
	uint64_t passed_over; /* newest version that was overwritten before all its readers paused; 0: none */
	char name[WIRE_NAME_SIZE];
	char device[WIRE_DEVICE_SIZE];
	uint32_t uid, gid, mode;
	uint32_t generation; /* generation of these three */
	uint32_t keep;
	uint32_t flags;
	uint32_t state; /* enum head_state */
	uint32_t n_versions;
	struct manifest_writer writer;
	struct manifest_version versions[MANIFEST_VERSIONS]; /* oldest first */
};

struct manifest {
	uint64_t magic;
	uint32_t abi;
	uint32_t pad;
	uint64_t buffer; /* id */
	_Atomic uint64_t active; /* the serial in force: its record is records[serial & 1] */
	/* Hints for use after a restart, outside the records. */
	uint32_t n_leases; /* that there are */
	uint32_t n_strangers; /* that there were before a restart, and have not been renewed */
	uint8_t reserved[4096 - 40];
	struct manifest_record records[2];
};
static_assert(sizeof(struct manifest) <= MANIFEST_SIZE, "a manifest has room for both records");

/* Makes one with an empty record in force, mapped, and its descriptor, which is the caller's. */
int manifest_new(uint64_t buffer, struct manifest **ret, int *ret_fd);

/*
 * Maps one from the store. -EBADF: it is not the memory of a manifest; -EBADMSG: it is not of this
 * buffer, or the active record is not the committed one; -EPROTONOSUPPORT: a later weightd has
 * written it, with the ABI *ret_abi.
 */
int manifest_open(int fd, uint64_t buffer, struct manifest **ret, uint32_t *ret_abi);

struct manifest *manifest_free(struct manifest *m);

/* The record in force. */
const struct manifest_record *manifest_current(const struct manifest *m);

/* The companions of a version or writer of the record in force; zeros where there are none. */
struct manifest_companions manifest_companions(const struct manifest *m,
					       const struct manifest_companions *c);

/* Fills in those of the other record, of a buffer without MANIFEST_IPC. */
void manifest_set_companions(struct manifest *m, struct manifest_companions *ret,
			     struct manifest_companions c);

/*
 * The other record, as a copy of the one in force without its versions and writer: to be filled in and
 * committed.
 */
struct manifest_record *manifest_begin(struct manifest *m);
/* Puts it in force: this is the commit. */
void manifest_commit(struct manifest *m);

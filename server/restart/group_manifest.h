/*
 * Manifests of writer groups
 *
 * The state of a job in a form that outlives weightd, as manifest.h has it for a buffer: one memfd, in the
 * store, mapped by weightd alone, with two records. A commit writes the inactive one and activates it by one
 * atomic store.
 */
#pragma once

#include <assert.h>
#include <stdatomic.h>
#include <stdint.h>

#include "ipc/wire.h"

#define GROUP_MANIFEST_MAGIC 0x4e414d424f4a4757ull
#define GROUP_MANIFEST_ABI 1
#define GROUP_MANIFEST_SIZE 4096

struct group_manifest_part {
	uint64_t id; /* of its memory in the store */
	uint64_t size;
	uint64_t huge_bytes;
	char kind[WIRE_KIND_SIZE];
};
static_assert(sizeof(struct group_manifest_part) == 40, "group_manifest_part is ABI");

#define GROUP_MANIFEST_READY 1u /* parts and description are whole, and ranks may have them */
#define GROUP_MANIFEST_REMOVED                                                                     \
	2u /* it has lost its name, and some process may still have its memory */

struct group_manifest_record {
	uint8_t checksum[WIRE_HASH_SIZE]; /* over all that follows */
	uint64_t serial; /* grows by one at each commit */
	char name[WIRE_NAME_SIZE];
	uint8_t token[WIRE_TOKEN_SIZE];
	uint8_t hash[WIRE_HASH_SIZE]; /* as the ranks have it */
	uint64_t created_ns, vacant_ns;
	int64_t linger_ms;
	uint64_t description; /* id in the store; 0: none */
	uint64_t done[WIRE_JOB_RANKS_MAX / 64]; /* a bit for each rank that left */
	uint32_t uid, gid;
	uint32_t n_ranks;
	uint32_t n_parts;
	uint32_t flags;
	uint32_t pad;
	struct group_manifest_part parts[WIRE_JOB_PARTS_MAX];
};
static_assert(sizeof(struct group_manifest_record) == 928, "group_manifest_record is ABI");

struct group_manifest {
	uint64_t magic;
	uint32_t abi;
	uint32_t pad;
	uint64_t group; /* id */
	_Atomic uint64_t active; /* the serial in force: its record is records[serial & 1] */
	uint8_t reserved[64 - 32];
	struct group_manifest_record records[2];
};
static_assert(sizeof(struct group_manifest) <= GROUP_MANIFEST_SIZE,
	      "a manifest has room for both records");

/* Makes one with an empty record in force, mapped, and its descriptor, which is the caller's. */
int group_manifest_new(uint64_t group, struct group_manifest **ret, int *ret_fd);

/*
 * Maps one from the store. -EBADF: it is not the memory of a manifest; -EBADMSG: it is not of this group, or the
 * active record is not the committed one; -EPROTONOSUPPORT: a later weightd has written it, with the ABI *ret_abi.
 */
int group_manifest_open(int fd, uint64_t group, struct group_manifest **ret, uint32_t *ret_abi);

struct group_manifest *group_manifest_free(struct group_manifest *m);

/* The record in force. */
const struct group_manifest_record *group_manifest_current(const struct group_manifest *m);

/* The other record, zero but for its serial: to be filled in and committed. */
struct group_manifest_record *group_manifest_begin(struct group_manifest *m);
/* Puts it in force: this is the commit. */
void group_manifest_commit(struct group_manifest *m);

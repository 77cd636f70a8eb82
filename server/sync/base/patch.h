/*
 * The patch
 *
 * What turns one version into another of the same size, element by element: where, and which value is there then, not
 * by how much it differs. So applying a patch twice, or one that begins earlier than the version that is there, makes
 * the same bytes; and of several patches in a row the last value of each place is one patch again.
 *
 *	header	128 bytes: magic, n_bytes of the version, number of blocks, bytes that change, the two roots
 *	table	of the blocks of 128 KiB that change, ascending: {index, 8 bytes, count, 4, mode, 4}
 *	payload	of each block in turn: sparse, `count` indices of 2 bytes and behind them as many values; or all of it
 *
 * Numbers are little-endian. A patch is believed nothing: whoever applies one looks at what that made.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/sync/base/merkle.h"

#define PATCH_BLOCK_SIZE ((uint64_t)1 << 17)
#define PATCH_HEADER_SIZE 128

struct patch_block {
	uint64_t index;
	uint64_t offset; /* of its payload */
	uint32_t count;
	uint32_t mode;
};

struct patch {
	uint64_t n_bytes; /* of the version */
	uint64_t n_changed; /* bytes of elements that change, as it says */
	uint8_t base[MERKLE_HASH_SIZE]; /* roots */
	uint8_t result[MERKLE_HASH_SIZE];
	const uint8_t *data; /* borrowed */
	struct patch_block *blocks;
	uint64_t n_blocks;
};

/* Of these bytes, which stay the caller's. -ENOMEM; -EBADMSG: it is none. */
int patch_open(const void *data, uint64_t size, struct patch *ret);
void patch_close(struct patch *p);

/*
 * Writes what changes into the bytes of one leaf. May run on several threads, for several leaves. -EBADMSG: it names
 * places that are none; what came before is written.
 */
int patch_apply(const struct patch *p, uint64_t leaf, uint8_t *bytes);

/* A patch before its bytes are written: how many they would be. */
struct patch_draft {
	uint64_t n_bytes; /* of the version */
	uint64_t n_changed;
	uint64_t size; /* of the patch */
	const uint8_t *from; /* what it is drawn from is borrowed until it is written */
	const uint8_t *to;
	const struct ranges *differ;
	const struct patch *patches;
	unsigned n_patches;
	struct patch_block *blocks;
	uint64_t n_blocks;
	int r;
};

/* From one version to another, which differ nowhere but in these leaves. -ENOMEM. */
int patch_draft_difference(const void *from, const void *to, uint64_t n_bytes,
			   const struct ranges *differ, struct patch_draft *ret);
/* All of these patches of a version of one size, one after the other. -ENOMEM, -EBADMSG. */
int patch_draft_union(const struct patch *patches, unsigned n, struct patch_draft *ret);
/* Into a memfd that is sealed then. -errno */
int patch_draft_write(struct patch_draft *d, const uint8_t base[MERKLE_HASH_SIZE],
		      const uint8_t result[MERKLE_HASH_SIZE], int *ret_fd);
void patch_draft_deinit(struct patch_draft *d);

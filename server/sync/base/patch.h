/*
 * The patch
 *
 * Turns one version into another of the same size, element by element: it contains places and new
 * values, not differences. So a patch may be applied twice, or to a version newer than its base,
 * with the same result. Several patches in a row are again one patch, with the last value of each
 * place.
 *
 *	header	128 bytes: magic, n_bytes of the version, number of blocks, bytes that change, the two roots
 *	table	of the blocks of 128 KiB that change, ascending: {index, 8 bytes, count, 4, mode, 4}
 *	payload	of each block in turn: sparse, `count` indices of 2 bytes and then as many values; or all of it
 *
 * Numbers are little-endian. A patch is not trusted: the caller must verify the result.
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
	uint64_t offset; /* the payload's */
	uint32_t count;
	uint32_t mode;
};

struct patch {
	uint64_t n_bytes; /* the version's */
	uint64_t n_changed; /* bytes of changed elements, by the header */
	uint8_t base[MERKLE_HASH_SIZE]; /* roots */
	uint8_t result[MERKLE_HASH_SIZE];
	const uint8_t *data; /* borrowed */
	struct patch_block *blocks;
	uint64_t n_blocks;
};

/* Parses these bytes, which stay the caller's. -ENOMEM; -EBADMSG: no patch. */
int patch_open(const void *data, uint64_t size, struct patch *ret);
void patch_close(struct patch *p);

/*
 * Writes the changes into the bytes of one leaf. Several threads may call it, for different leaves.
 * -EBADMSG: it contains invalid places; the changes before these are written.
 */
int patch_apply(const struct patch *p, uint64_t leaf, uint8_t *bytes);

/* A patch before its bytes are written, with its size. */
struct patch_draft {
	uint64_t n_bytes; /* the version's */
	uint64_t n_changed;
	uint64_t size; /* the patch's */
	const uint8_t *from; /* the sources are borrowed until the patch is written */
	const uint8_t *to;
	const struct ranges *differ;
	const struct patch *patches;
	unsigned n_patches;
	struct patch_block *blocks;
	uint64_t n_blocks;
	int r;
};

/* Drafts the difference of two versions, which are equal outside of these leaves. -ENOMEM. */
int patch_draft_difference(const void *from, const void *to, uint64_t n_bytes,
			   const struct ranges *differ, struct patch_draft *ret);
/* Drafts the union of patches of versions of one size, the last one wins. -ENOMEM, -EBADMSG. */
int patch_draft_union(const struct patch *patches, unsigned n, struct patch_draft *ret);
/* Writes the patch into a sealed memfd. -errno */
int patch_draft_write(struct patch_draft *d, const uint8_t base[MERKLE_HASH_SIZE],
		      const uint8_t result[MERKLE_HASH_SIZE], int *ret_fd);
void patch_draft_deinit(struct patch_draft *d);

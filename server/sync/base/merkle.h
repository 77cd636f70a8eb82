/*
 * The Merkle tree
 *
 * A publisher signs its root instead of the bytes: SHA-256 of each leaf of 1 MiB, and SHA-256 of
 * the number of bytes and the table of leaves. XXH3 detects accidents; this cannot be forged.
 *
 *	leaf i	SHA-256(0x00 | the leaf's bytes; the last one may be shorter)
 *	root	SHA-256(0x01 | n_bytes, 8 bytes big-endian | leaf 0 | leaf 1 | ...)
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "server/sync/base/ranges.h"

#define MERKLE_LEAF_SIZE ((uint64_t)1 << 20)
#define MERKLE_HASH_SIZE 32

static inline uint64_t merkle_n_leaves(uint64_t n_bytes)
{
	return n_bytes / MERKLE_LEAF_SIZE + (n_bytes % MERKLE_LEAF_SIZE != 0);
}

/* SHA-256 of a blob. */
void merkle_hash(const void *data, size_t size, uint8_t ret[MERKLE_HASH_SIZE]);

/* Hashes leaf `leaf` of `n_bytes` bytes at `data`. */
void merkle_leaf(const void *data, uint64_t n_bytes, uint64_t leaf, uint8_t ret[MERKLE_HASH_SIZE]);

/* Calls `each` for every leaf, on one thread per core, at most 8: concurrently, in no order. */
void merkle_each_leaf(uint64_t n_bytes, void (*each)(void *userdata, uint64_t leaf), void *userdata);

/*
 * Writes all merkle_n_leaves() leaves to `ret`, on such threads. Calls `each` right after hashing a
 * leaf, while its bytes are in the cache; NULL: no call.
 */
void merkle_leaves(const void *data, uint64_t n_bytes, uint8_t (*ret)[MERKLE_HASH_SIZE],
		   void (*each)(void *userdata, uint64_t leaf), void *userdata);

void merkle_root(uint64_t n_bytes, const uint8_t (*leaves)[MERKLE_HASH_SIZE],
		 uint8_t ret[MERKLE_HASH_SIZE]);

/*
 * Adds to `ret` the bytes of those leaves that differ from the leaf at the same place in `others`,
 * a table of `n_others`. If that takes more than RANGES_MAX ranges, the bytes between the nearest
 * of them are added too. The other version may be larger or smaller: a leaf that is cut elsewhere
 * has another hash. -ENOMEM.
 */
int merkle_difference(uint64_t n_bytes, const uint8_t (*leaves)[MERKLE_HASH_SIZE], uint64_t n_others,
		      const uint8_t (*others)[MERKLE_HASH_SIZE], struct ranges *ret);

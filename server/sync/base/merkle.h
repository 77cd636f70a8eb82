/*
 * The Merkle tree
 *
 * What a publisher signs instead of bytes: SHA-256 of each leaf of 1 MiB, and of the table of leaves behind
 * their number of bytes. XXH3 finds accidents; this cannot be forged.
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

/* Leaf `leaf` of `n_bytes` bytes at `data`. */
void merkle_leaf(const void *data, uint64_t n_bytes, uint64_t leaf, uint8_t ret[MERKLE_HASH_SIZE]);

/*
 * Calls `each` for every leaf, on as many threads as there are cores, 8 at most: several at once, in no order.
 */
void merkle_each_leaf(uint64_t n_bytes, void (*each)(void *userdata, uint64_t leaf), void *userdata);

/*
 * All leaves into `ret`, merkle_n_leaves() of them, likewise. `each` is called beside each leaf, while it is hot; NULL:
 * nothing is.
 */
void merkle_leaves(const void *data, uint64_t n_bytes, uint8_t (*ret)[MERKLE_HASH_SIZE],
		   void (*each)(void *userdata, uint64_t leaf), void *userdata);

void merkle_root(uint64_t n_bytes, const uint8_t (*leaves)[MERKLE_HASH_SIZE],
		 uint8_t ret[MERKLE_HASH_SIZE]);

/*
 * The bytes of those leaves that `others`, a table of `n_others`, has not at the same place are added to `ret`; if that
 * would be more than RANGES_MAX ranges, with what lies between the nearest of them. What the table is of may be larger
 * or smaller: a leaf that is cut elsewhere hashes to something else. -ENOMEM.
 */
int merkle_difference(uint64_t n_bytes, const uint8_t (*leaves)[MERKLE_HASH_SIZE], uint64_t n_others,
		      const uint8_t (*others)[MERKLE_HASH_SIZE], struct ranges *ret);

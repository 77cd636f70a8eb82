/*
 * Digests
 *
 * XXH3-128 of each 1 MiB leaf of a range, and of the table of leaf digests: the root names the bytes.
 * A slot of the flat form is the flat range and, behind it on the next page, its table of leaves, so that
 * every reader of the bytes can also locate the wrong ones:
 *
 *	0            data_size   leaves_offset              slot_size
 *	| tensors ... |  zero   | 16 bytes for each leaf | zero |
 *
 * An image is a file, a header and the flat range, and nothing else. Its digests are in a memfd of their own:
 *
 *	0      data_offset        slot_size        0                         digest_table_size()
 *	| header | tensors ...            |        | digest of the header | 16 bytes for each leaf |
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ipc/hash.h"

#define DIGEST_LEAF_SIZE ((uint64_t)1 << 20)
#define DIGEST_DATA_MAX ((uint64_t)1 << 50)

static inline uint64_t digest_n_leaves(uint64_t data_size)
{
	return data_size / DIGEST_LEAF_SIZE + (data_size % DIGEST_LEAF_SIZE != 0);
}

/* Require data_size <= DIGEST_DATA_MAX: callers must check sizes from outside. */
uint64_t digest_leaves_offset(uint64_t data_size);
uint64_t digest_slot_size(uint64_t data_size);

/* Bytes of an image's digests. */
static inline uint64_t digest_table_size(uint64_t data_size)
{
	return (1 + digest_n_leaves(data_size)) * HASH_SIZE;
}

/* The digest of leaf `leaf` of the `size` bytes at `data`; the last leaf may be short. */
void digest_leaf(const void *data, uint64_t size, uint64_t leaf, uint8_t ret_hash[HASH_SIZE]);

/* The root over a table of `n` leaf digests. */
void digest_root(const uint8_t (*leaves)[HASH_SIZE], uint64_t n, uint8_t ret_hash[HASH_SIZE]);

#include "ipc/digest.h"

#include <assert.h>

#include "ipc/base/num.h"

#define PAGE 4096u

uint64_t digest_leaves_offset(uint64_t data_size)
{
	assert(data_size <= DIGEST_DATA_MAX);
	return (data_size + PAGE - 1) & ~(uint64_t)(PAGE - 1);
}

uint64_t digest_slot_size(uint64_t data_size)
{
	uint64_t size = digest_leaves_offset(data_size) + digest_n_leaves(data_size) * HASH_SIZE;

	/* Never empty: an empty file cannot be mapped. */
	return size ? (size + PAGE - 1) & ~(uint64_t)(PAGE - 1) : PAGE;
}

void digest_leaf(const void *data, uint64_t size, uint64_t leaf, uint8_t ret_hash[HASH_SIZE])
{
	uint64_t start = leaf * DIGEST_LEAF_SIZE;
	uint64_t n = size - start < DIGEST_LEAF_SIZE ? size - start : DIGEST_LEAF_SIZE;

	assert(start < size);
	hash128((const char *)data + start, n, ret_hash);
}

void digest_root(const uint8_t (*leaves)[HASH_SIZE], uint64_t n, uint8_t ret_hash[HASH_SIZE])
{
	hash128(leaves, n * HASH_SIZE, ret_hash);
}

/*
 * Digests of a GPU's memory, leaf by leaf through host memory.
 */
#include <errno.h>
#include <stdlib.h>

#include "ipc/base/cleanup.h"
#include "ipc/digest.h"
#include "libclient/cuda/cuda.h"

int cuda_digest(const struct memory *m, uint64_t data_size, uint64_t first, uint64_t n,
		uint8_t (*ret)[HASH_SIZE], struct sentence *s)
{
	cleanup(freep) void *leaf = malloc(DIGEST_LEAF_SIZE);
	int r = 0;

	if (!leaf)
		return sentence_set(s, -ENOMEM, "out of memory");
	for (uint64_t i = 0; r == 0 && i < n; i++) {
		uint64_t offset = (first + i) * DIGEST_LEAF_SIZE;
		uint64_t size = data_size - offset;

		if (size > DIGEST_LEAF_SIZE)
			size = DIGEST_LEAF_SIZE;
		r = cuda_read(m, offset, leaf, size, s);
		if (r == 0)
			hash128(leaf, size, ret[i]);
	}
	return r;
}

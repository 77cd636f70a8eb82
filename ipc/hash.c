#include "ipc/hash.h"

#include <string.h>

/* Header-only: the daemon links no library for it, and exports none of its names. */
#define XXH_INLINE_ALL
#include <xxhash.h>

void hash128(const void *data, size_t size, uint8_t ret_hash[HASH_SIZE])
{
	XXH128_canonical_t canonical;

	XXH128_canonicalFromHash(&canonical, XXH3_128bits(data, size));
	memcpy(ret_hash, canonical.digest, HASH_SIZE);
}

uint64_t hash64(const void *data, size_t size)
{
	return XXH3_64bits(data, size);
}

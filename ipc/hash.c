#include "ipc/hash.h"

#include <string.h>

#include "ipc/hash_isa.h"

/* Header-only: the daemon links no library for it, and exports none of its names. */
#define XXH_INLINE_ALL
#include <xxhash.h>

#define WIDE_SIZE_MIN 1024 /* bytes from which vectors matter */

void hash128_portable(const void *data, size_t size, uint8_t ret_hash[HASH_SIZE])
{
	XXH128_canonical_t canonical;

	XXH128_canonicalFromHash(&canonical, XXH3_128bits(data, size));
	memcpy(ret_hash, canonical.digest, HASH_SIZE);
}

void hash128(const void *data, size_t size, uint8_t ret_hash[HASH_SIZE])
{
#ifdef __x86_64__
	if (size >= WIDE_SIZE_MIN && __builtin_cpu_supports("avx2")) {
		hash128_avx2(data, size, ret_hash);
		return;
	}
#endif
	hash128_portable(data, size, ret_hash);
}

uint64_t hash64(const void *data, size_t size)
{
	return XXH3_64bits(data, size);
}

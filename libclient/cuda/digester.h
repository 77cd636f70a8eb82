/*
 * Digests on a GPU
 *
 * The kernel of digest.cu for one mapping: the GPU digests leaves in its own memory and copies back 16 bytes of each.
 */
#pragma once

#include "ipc/hash.h"
#include "libclient/cuda/place.h"

/* digest.fatbin; and digest.ptx, text with a NUL at its end. */
extern const char digest_fatbin[], digest_ptx[];

struct digester;

/*
 * In the current context, the primary one of the place. NULL: unavailable, for lack of code for this GPU, say.
 */
struct digester *digester_new(const struct place *p);
struct digester *digester_free(struct digester *g); /* may wait for what runs on the GPU */

/* As memory_kind::digest, of data at an address that is aligned to 16 bytes; one call at a time. */
int digester_run(struct digester *g, cu_ptr data, uint64_t data_size, uint64_t first, uint64_t n,
		 uint8_t (*ret)[HASH_SIZE], struct sentence *s);

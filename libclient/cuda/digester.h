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

/*
 * Digests of leaves as they arrive, beside copies of others: a table on the GPU, 16 bytes a leaf, which the caller frees with
 * digester_free_table(). Calls for one digester exclude each other. In the primary context of the place.
 */
int digester_new_table(struct digester *g, uint64_t n_leaves, cu_ptr *ret, struct sentence *s);
/* Queues the digests of leaves [first, first + n), as below, behind the work that `after` has recorded. */
int digester_queue(struct digester *g, cu_ptr table, cu_ptr data, uint64_t data_size,
		   uint64_t first, uint64_t n, cu_event after, struct sentence *s);
/* Waits for all that is queued, and copies the table back. */
int digester_take(struct digester *g, cu_ptr table, uint64_t n, uint8_t (*ret)[HASH_SIZE],
		  struct sentence *s);
void digester_free_table(struct digester *g, cu_ptr table);

/* As memory_kind::digest, of data at an address that is aligned to 16 bytes; one call at a time. */
int digester_run(struct digester *g, cu_ptr data, uint64_t data_size, uint64_t first, uint64_t n,
		 uint8_t (*ret)[HASH_SIZE], struct sentence *s);

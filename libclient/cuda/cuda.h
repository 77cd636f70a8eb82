/*
 * GPU memory
 *
 * Common parts of both kinds: the GPU and context to work in, copies, digests and streams.
 */
#pragma once

#include <pthread.h>

#include "libclient/cuda/place.h"
#include "libclient/version/memory.h"

struct digester;

/* memory::state. */
struct cuda_state {
	struct place place;
	cu_device owner; /* the GPU that has the memory */
	cu_event mark; /* NULL: none */
	cu_handle handle; /* handle of the mapped memory; the older kind has none */
	int fd; /* older kind: reads as ended once the memory is lost; else -1 */
	pthread_mutex_t lock; /* protects what follows, and the digester's work */
	bool has_digester; /* it was tried to make one */
	struct digester *digester; /* NULL: none */
};

/* The place for a request: of the GPU that has the memory, or of the one that is to map it. */
int cuda_state_new(const struct memory_request *q, struct cuda_state **ret, struct sentence *s);
struct cuda_state *cuda_state_free(struct cuda_state *state);

/*
 * Lets the GPU of a place read the memory where it is mapped, until it is unmapped. False: it cannot, for lack of peer
 * access or because the memory is of the older kind and another GPU's.
 */
bool cuda_open_to(const struct memory *m, const struct place *reader);

/*
 * Copies bytes to memory of a GPU from memory that this GPU reaches, at the same offset, and waits until they are there.
 * Like cuda_write().
 */
int cuda_copy(struct memory *m, const struct memory *from, uint64_t offset, uint64_t n,
	      struct sentence *s);

/*
 * Digests of memory that is being filled: the GPU digests what has arrived while other bytes are copied.
 */
struct arrival {
	const struct memory *m; /* NULL: none */
	uint64_t data_size;
	cu_ptr table;
};

/* False: the GPU cannot, and the memory has to be digested when it is filled. */
bool cuda_arrival_init(struct arrival *a, const struct memory *m, uint64_t data_size);
/* Queues the digests of leaves [first, first + n) behind the work that `after` has recorded. In the primary context. */
int cuda_arrival_queue(struct arrival *a, uint64_t first, uint64_t n, cu_event after,
		       struct sentence *s);
/* The digests of the first `n` leaves, which all were queued. */
int cuda_arrival_take(struct arrival *a, uint64_t n, uint8_t (*ret)[HASH_SIZE], struct sentence *s);
void cuda_arrival_deinit(struct arrival *a);

/* Functions of both kinds' rows. */
int cuda_read(const struct memory *m, uint64_t offset, void *to, uint64_t n, struct sentence *s);
int cuda_write(struct memory *m, uint64_t offset, const void *from, uint64_t n, struct sentence *s);
int cuda_digest(const struct memory *m, uint64_t data_size, uint64_t first, uint64_t n,
		uint8_t (*ret)[HASH_SIZE], struct sentence *s);
int cuda_synchronize(const struct memory *m, void *stream, struct sentence *s);
int cuda_mark(struct memory *m, void *stream, struct sentence *s);
bool cuda_has_passed(const struct memory *m, bool wait);

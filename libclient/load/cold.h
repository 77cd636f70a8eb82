/*
 * Cold reads: the part of a load that is not in the page cache, read past it, or on a server
 *
 * One thread keeps reads of several chunks in flight, in turn from each file. The threads of the reader take chunks whose
 * bytes are there, and digest them. Without io_uring they read the chunks themselves, and those of remote files always.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "libclient/load/chunk.h"
#include "libclient/load/disk/ring.h"
#include "libclient/load/sink.h"
#include "libclient/load/supply.h"
#include "weightd.h"

#define COLD_IN_FLIGHT_MAX 16u /* chunks: 64 MiB */

enum cold_kind {
	COLD_NOT, /* by the page cache */
	COLD_STAGED,
	COLD_IN_PLACE,
	COLD_JOINED, /* in place, and the chunk before has its first bytes in the block where it ends */
};

struct cold_file {
	bool is_open;
	_Atomic bool is_refused; /* by its file system, or remote; file_read() has to do */
};

struct cold {
	const struct plan *plan;
	struct weightd_writer *wr;
	struct supply *supply; /* the reader's */
	struct pace *pace; /* the reader's */
	uint64_t n_chunks; /* of the version */
	uint8_t *kinds; /* enum cold_kind of each chunk; NULL: none is cold */
	bool *was_absent; /* a chunk read by the page cache had no page of its own there before */
	_Atomic uint8_t *waits; /* chunks that have bytes of the first leaf of a chunk, and are not there yet */
	uint64_t *order; /* numbers of cold chunks */
	uint64_t n_order;
	struct cold_file *files; /* of the plan */
	struct direct *directs; /* of the same */
	struct chunk *chunks; /* in flight or being digested */
	unsigned n_in_flight_max;
	char *stage; /* of all chunks */
	struct ring *ring; /* NULL: there is none, or a pace to keep, for which the threads read */
	int ring_error; /* why */
	pthread_t thread;
	bool has_thread;
	uint64_t n_reads; /* in flight; the thread's own */
	struct chunk *next; /* to be read once it has memory; the thread's own */
	int r; /* the thread's error */
	_Atomic uint64_t n_done; /* bytes of the version, chunks under way included */
	_Atomic uint64_t n_direct; /* bytes of the version that no read of the page cache was needed for */

	pthread_mutex_t lock; /* protects the rest */
	pthread_cond_t ready; /* one is done or free, or none comes any more */
	pthread_cond_t freed;
	uint64_t n_begun, n_taken;
	struct chunk *done, *last_done;
	struct chunk *free;
	bool is_stopped;
};

/*
 * Chooses the chunks that are read past the page cache; n_order is 0 if there are none. Fails with -ENOMEM only: without
 * direct reads, the page cache has to do.
 */
int cold_init(struct cold *c, const struct plan *plan, struct weightd_writer *wr,
	      struct supply *supply, struct pace *pace, enum weightd_read how);
void cold_deinit(struct cold *c);

/* Begins to read. The thread takes the signal mask of the caller. */
void cold_start(struct cold *c);

/*
 * The next chunk to finish. NULL: none comes any more, or, without `wait`, none is there. The caller owns it until
 * cold_release().
 */
struct chunk *cold_take(struct cold *c, bool wait);
void cold_release(struct cold *c, struct chunk *chunk);

/* Ends a chunk: its bytes, and its digests. Called by the thread that took it, by its number for the sink. */
int cold_finish(struct cold *c, struct chunk *chunk, struct sink *sink, unsigned thread,
		struct sentence *s);

/* Begins no further read. */
void cold_stop(struct cold *c);
/* Waits until no read is in flight. The error of the ring, if it failed. */
int cold_join(struct cold *c, struct sentence *s);

static inline bool cold_has(const struct cold *c, uint64_t leaf)
{
	return c->kinds && c->kinds[leaf / CHUNK_LEAVES] != COLD_NOT;
}

/* Removes what the load has added to the page cache. */
void cold_drop(const struct cold *c);

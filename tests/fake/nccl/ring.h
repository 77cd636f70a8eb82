/*
 * Rings
 *
 * Connects the ranks of the stand-in for libnccl, each with each other one: a rank listens on a Unix
 * socket in FAKE_NCCL_STATE, or else in FAKE_CUDA_STATE, named for the id and the rank, and connects
 * to those before it. In a ring, it sends to the rank after it, and receives from the one before.
 * Sent bytes arrive even if the sender ends.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#define RING_WHO_SIZE 80
#define RING_RANKS_MAX 64

struct ring {
	int rank, n;
	atomic_int fds[RING_RANKS_MAX]; /* by rank; -1: none */
	atomic_bool is_cut;
};

void ring_init(struct ring *r);

/*
 * Connects to the others, however long that takes. `name` names this host and GPU, and
 * `ret_previous` gets the same of the rank before. False: it was cut, or another rank has ended.
 */
bool ring_form(struct ring *r, const char *id, int rank, int n, const char name[RING_WHO_SIZE],
	       char ret_previous[RING_WHO_SIZE]);

/* All of it. False: the other rank is gone, or the ring was cut. */
bool ring_send(struct ring *r, const void *data, size_t size);
bool ring_receive(struct ring *r, void *data, size_t size);

/* Bytes to or from any rank. */
struct ring_transfer {
	int peer;
	bool sends;
	char *data;
	size_t size, done;
};

/* Moves some bytes of any of them that are not done, and waits for a moment. False: as above. */
bool ring_move_some(struct ring *r, struct ring_transfer *transfers, size_t n);

/* From another thread: whatever waits, ends. */
void ring_cut(struct ring *r);
/* Until then. */
void ring_await_cut(struct ring *r);

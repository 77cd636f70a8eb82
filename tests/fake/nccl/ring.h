/*
 * Rings
 *
 * Connects the ranks of the stand-in for libnccl: each listens on a Unix socket in FAKE_NCCL_STATE,
 * or else in FAKE_CUDA_STATE, named for the id and the rank, and connects to the rank after it.
 * Sent bytes arrive even if the sender ends.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#define RING_WHO_SIZE 80

struct ring {
	int rank, n;
	atomic_int previous_fd, next_fd; /* -1: none */
	atomic_bool is_cut;
};

/*
 * Connects to the others, however long that takes. `name` names this host and GPU, and
 * `ret_previous` gets the same of the rank before. False: it was cut, or another rank has ended.
 */
bool ring_form(struct ring *r, const char *id, int rank, int n, const char name[RING_WHO_SIZE],
	       char ret_previous[RING_WHO_SIZE]);

/* All of it. False: the other rank is gone, or the ring was cut. */
bool ring_send(struct ring *r, const void *data, size_t size);
bool ring_receive(struct ring *r, void *data, size_t size);

/* From another thread: whatever waits, ends. */
void ring_cut(struct ring *r);
/* Until then. */
void ring_await_cut(struct ring *r);

/*
 * Rings: reads that the kernel does while the caller does something else
 *
 * One thread uses a ring; another may make and free it. ring-liburing.c or ring-none.c is built.
 */
#pragma once

#include <stdint.h>

struct ring;

struct ring_read {
	int fd;
	void *to;
	uint32_t size;
	uint64_t offset;
	void *tag; /* returned with the result; not NULL */
};

/*
 * Room for `n` reads that are not yet submitted. -ENOSYS: built without it, or the kernel has none; -EPERM: it is forbidden,
 * as most containers do; -ENOMEM: by RLIMIT_MEMLOCK too, before Linux 5.12.
 */
int ring_new(unsigned n, struct ring **ret);
struct ring *ring_free(struct ring *ring);

/* Called first by the thread that will use it. */
int ring_begin(struct ring *ring);

/* Queues a read. `read` may go; its memory may not. */
int ring_read(struct ring *ring, const struct ring_read *read);

/* Submits what is queued and waits for the next result: bytes, or a negative errno. There must be a read in flight. */
int ring_wait(struct ring *ring, void **ret_tag, int *ret_result);

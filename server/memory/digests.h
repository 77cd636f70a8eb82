/*
 * Digests beside an image
 *
 * The memfd with the digests of a slot that is a file, which itself has room for nothing else; see ipc/digest.h.
 * Made, kept, sealed and freed with its slot, which has the charge.
 */
#pragma once

#include <stdint.h>

struct digests {
	uint64_t size; /* 0: there are none, and all below does nothing */
	int fd; /* the writer's; -1 once published */
	int reader_fd; /* read-only: the readers' and the store's; -1: lost */
};

void digests_init(struct digests *d);
/* On the worker: closes all descriptors. */
void digests_close(struct digests *d);

/* Makes a memfd of `size` bytes, all of it a hole. */
int digests_new(struct digests *d, uint64_t size);
/* On the worker: gives it memory. -ENOMEM, decided before the memory is touched, and other errnos. */
int digests_provide(const struct digests *d);

/* Takes a descriptor from the store, on success. -EBADMSG unless it can be one of `size` bytes. */
int digests_recover(struct digests *d, uint64_t size, int fd);

/* Makes sure of the writable descriptor, for what is not published. */
int digests_open(struct digests *d);
void digests_shut(struct digests *d);

/* On the worker: makes them immutable, once or again. -EBUSY while a process maps them writable; -EPERM. */
int digests_seal(const struct digests *d);

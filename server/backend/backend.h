/*
 * Backends
 *
 * Where the bytes of a slot live. A backend is a const table and a row in backends[]; a slot's memory
 * is always one descriptor, which keeps it alive.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct backend_progress {
	uint64_t done; /* bytes that have their memory */
	uint64_t huge; /* of them, in huge pages */
	uint64_t missing; /* with -ENOMEM: how much more the machine would have to have free */
};

struct backend {
	/* True for the spelling of a device of this backend: "host". */
	bool (*has_device)(const char *device);

	/* A descriptor, writable, for `size` bytes that have no memory yet. */
	int (*allocate)(uint64_t size, int *ret_fd);

	/*
	 * Gives memory to the next part, blocking for some milliseconds. JOB_AGAIN, JOB_DONE or -ENOMEM:
	 * decided before the memory is touched, since past a cgroup's limit the kernel kills.
	 */
	int (*provide)(int fd, uint64_t size, struct backend_progress *progress);

	/* A descriptor of the same memory that cannot be used to write it. */
	int (*reader)(int fd, int *ret_fd);

	/* For a descriptor of reader(): one that can write, for memory that is not sealed. */
	int (*writable)(int fd, int *ret_fd);

	/* Whether somebody but `fd`, one of reader(), has the memory open or mapped: 1, 0, or negative: unknown. */
	int (*in_use)(int fd);

	/* Likewise whether somebody can write it. */
	int (*has_writer)(int fd);

	/* How many bytes have memory behind them; whether it is immutable. For what came back after a restart. */
	int (*describe)(int fd, uint64_t *ret_size, uint64_t *ret_allocated, bool *ret_sealed);

	/* Checks that nothing was taken out of memory that is not going to be sealed. 0, -ENODATA. */
	int (*is_whole)(int fd, uint64_t size);

	/*
	 * Makes the memory immutable, blocking for up to 160 ms. -EBUSY while somebody maps it writable;
	 * -EPERM when the writer has forbidden seals; -ENODATA when parts of it were taken out.
	 */
	int (*seal)(int fd, uint64_t size);
};

extern const struct backend backend_host;

/* The backend of a device. -ENODEV. */
int backend_find(const char *device, const struct backend **ret);

/*
 * File descriptors
 *
 * Every descriptor is close-on-exec from birth, and -1 means none.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Closes fd unless it is negative, keeps errno, returns -1 for fd = fd_close(fd). */
int fd_close(int fd);

static inline void fd_closep(int *fd)
{
	*fd = fd_close(*fd);
}

/* A sealable, non-executable memfd of `size` bytes, all of it a hole. */
int fd_memfd(const char *name, uint64_t size, int *ret_fd);

/* All of it, however often it takes; of a file, not of a socket that could be full. */
int fd_write_all(int fd, const void *data, uint64_t size);

/* The same, up to `size` bytes of the rest. */
int fd_read_all(int fd, void *ret, uint64_t size, uint64_t *ret_size);

/*
 * A memfd with these bytes, sealed against every change, opened read-only if there is a /proc. For what travels by
 * descriptor because it has no fixed length.
 */
int fd_sealed_copy(const char *name, const void *data, uint64_t size, int *ret_fd);

/*
 * The same file behind a new read-only descriptor, without waiting: -EAGAIN when somebody holds a lease on
 * it. Needs /proc, and read permission on the file.
 */
int fd_reopen_readonly(int fd, int *ret_fd);

/*
 * The same file behind a new descriptor that can write it, for the file's owner, whatever its mode: which is
 * 0600 for a moment and then 0400.
 */
int fd_reopen_writable(int fd, int *ret_fd);

/*
 * Returns 1 if another open file description of this file exists, mappings included, and 0 if `fd`, which must be
 * read-only, is the only one. Negative: it cannot be determined. Tries a write lease, which the kernel grants only to
 * the only one.
 */
int fd_is_open_elsewhere(int fd);

/* Likewise whether any is left that can write; `fd` must be read-only. */
int fd_is_open_for_writing(int fd);

/* True if fd is a memfd that is sealed against writing, shrinking and growing. */
bool fd_is_sealed(int fd);

/* Size in bytes. -EBADF for what is no regular file. */
int fd_size(int fd, uint64_t *ret_size);

/*
 * True if all `size` bytes were written, so that reading them takes no more memory. The number of blocks alone does
 * not prove that: they may lie behind the end of the file. Takes some milliseconds for a GiB.
 */
bool fd_is_written(int fd, uint64_t size);

/* As many descriptors as this process is allowed to have, not only as many as it is given. */
int fd_raise_limit(void);

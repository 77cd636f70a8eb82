/*
 * Blobs
 *
 * Bytes of another process in a sealed memfd, mapped: they cannot change or shrink while they are
 * read.
 */
#pragma once

#include <stdint.h>

struct blob {
	const void *data; /* "" if empty */
	uint64_t size;
};

/* -EBADMSG: `fd` is no sealed memfd, or larger than `max` bytes. A zeroed blob is empty. */
int blob_map(int fd, uint64_t max, struct blob *ret);
void blob_deinit(struct blob *b);

/*
 * Blobs
 *
 * Bytes of somebody else in a sealed memfd, mapped: nobody changes or shortens them while they are read.
 */
#pragma once

#include <stdint.h>

struct blob {
	const void *data; /* "" where there are none */
	uint64_t size;
};

/* -EBADMSG: `fd` is no sealed memfd, or one of more than `max` bytes. A zeroed blob is none. */
int blob_map(int fd, uint64_t max, struct blob *ret);
void blob_deinit(struct blob *b);

/*
 * Direct reads: a second descriptor of a file, past the page cache
 */
#pragma once

#include <stdint.h>

#include "libclient/image/file.h"

#define DIRECT_ALIGN_MAX 4096u

struct direct {
	int fd;
	uint32_t align; /* of the memory, the offset and the size of a read; a power of two, at most DIRECT_ALIGN_MAX */
};

#define DIRECT_INIT                                                                                \
	{                                                                                          \
		.fd = -1                                                                           \
	}

/*
 * -EOPNOTSUPP or -EINVAL: the file system has no direct reads; -ESTALE: the path leads to another file by now; other errors
 * of open(2). A file system may still refuse the first read, with -EINVAL.
 */
int direct_open(const struct file *f, struct direct *ret);
void direct_close(struct direct *d);

#include "libclient/load/disk/cached.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef __NR_cachestat
#define __NR_cachestat 451 /* on all architectures */
#endif

/* As the kernel has them; headers before 6.5 do not. */
struct cached_range {
	uint64_t offset, size;
};

struct cached_pages {
	uint64_t n_cached, n_dirty, n_writeback, n_evicted, n_recently_evicted;
};

/*
 * A read that may not wait. It begins to read ahead a few pages where it finds none, which is little beside a chunk. A file
 * system that knows no such reads counts as cached: it is read as any program reads it.
 */
static bool is_cached_at(int fd, uint64_t offset)
{
	char byte;
	struct iovec part = {&byte, 1};

	return preadv2(fd, &part, 1, (off_t)offset, RWF_NOWAIT) >= 0 || errno != EAGAIN;
}

uint64_t cached_bytes(int fd, uint64_t offset, uint64_t size)
{
	struct cached_range range = {offset, size};
	struct cached_pages pages = {0};
	uint64_t n;

	if (size == 0)
		return 0;
	if (syscall(__NR_cachestat, fd, &range, &pages, 0) < 0)
		return is_cached_at(fd, offset + size / 2) ? size : 0;
	n = pages.n_cached * (uint64_t)sysconf(_SC_PAGESIZE);
	return n < size ? n : size;
}

void cached_drop(int fd, uint64_t offset, uint64_t size)
{
	(void)posix_fadvise(fd, (off_t)offset, (off_t)size, POSIX_FADV_DONTNEED); /* a hint */
}

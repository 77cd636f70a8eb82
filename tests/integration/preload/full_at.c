/* Preloaded into weightd: no memory for bytes from $FULL_AT on, whatever is free. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

int fallocate(int fd, int mode, off_t offset, off_t size)
{
	const char *at = getenv("FULL_AT");

	if (at && offset + size > atoll(at)) {
		errno = ENOSPC;
		return -1;
	}
	return (int)syscall(SYS_fallocate, fd, mode, offset, size);
}

/*
 * Preloaded into a loader: makes one read of a file's data fail, lie, or stop until the test lets it go on.
 * Reads of the header pass; they end before the data begins. With the environment:
 *
 *	GATE_FILE	the end of the file's path
 *	GATE_OFFSET	where its data begins
 *	GATE_CALL	which read of its data is meant, from 1
 *	GATE_DO		"eio"; "flip": a bit of its first byte; "pause": writes "1" to the FIFO GATE_READY, and waits for a byte from the FIFO
 *			GATE_GO; "trickle": every read of the data is short, every third is interrupted
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define TRICKLE 4001 /* bytes at most; odd, so that no boundary is met by chance */

typedef ssize_t preadv_fn(int, const struct iovec *, int, off_t);

ssize_t preadv(int fd, const struct iovec *parts, int n_parts, off_t offset);
ssize_t preadv64(int fd, const struct iovec *parts, int n_parts, off_t offset);
ssize_t pread(int fd, void *buffer, size_t size, off_t offset);
ssize_t pread64(int fd, void *buffer, size_t size, off_t offset);

static _Atomic unsigned n_calls;

static bool is_data(int fd, off_t offset)
{
	const char *want = getenv("GATE_FILE"), *from = getenv("GATE_OFFSET");
	char link[32], path[4096];
	ssize_t n;

	if (!want || !from || offset < atoll(from))
		return false;
	(void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, sizeof(path) - 1);
	if (n < (ssize_t)strlen(want))
		return false;
	path[n] = '\0';
	return !strcmp(path + n - strlen(want), want);
}

static void pause_here(void)
{
	int ready = open(getenv("GATE_READY"), O_WRONLY | O_CLOEXEC);
	int go = open(getenv("GATE_GO"), O_RDONLY | O_CLOEXEC); /* the test holds both open */
	char byte;

	if (write(ready, "1", 1) != 1)
		abort();
	while (read(go, &byte, 1) < 0 && errno == EINTR)
		;
	(void)close(ready);
	(void)close(go);
}

static ssize_t flip(int fd, const struct iovec *parts, int n_parts, off_t offset)
{
	preadv_fn *next = (preadv_fn *)dlsym(RTLD_NEXT, "preadv64");
	ssize_t n = next(fd, parts, n_parts, offset);

	if (n > 0)
		*(char *)parts->iov_base ^= 1;
	return n;
}

static ssize_t trickle(int fd, const struct iovec *part, off_t offset, unsigned call)
{
	preadv_fn *next = (preadv_fn *)dlsym(RTLD_NEXT, "preadv64");
	struct iovec less = *part;

	if (call % 3 == 0) {
		errno = EINTR;
		return -1;
	}
	if (less.iov_len > TRICKLE)
		less.iov_len = TRICKLE;
	return next(fd, &less, 1, offset);
}

ssize_t preadv64(int fd, const struct iovec *parts, int n_parts, off_t offset)
{
	preadv_fn *next = (preadv_fn *)dlsym(RTLD_NEXT, "preadv64");
	const char *action = getenv("GATE_DO"), *at = getenv("GATE_CALL");
	unsigned call;

	if (!action || !is_data(fd, offset))
		return next(fd, parts, n_parts, offset);
	call = atomic_fetch_add(&n_calls, 1) + 1;
	if (!strcmp(action, "trickle"))
		return trickle(fd, parts, offset, call);
	if (at && call == (unsigned)atoi(at)) {
		if (!strcmp(action, "eio")) {
			errno = EIO;
			return -1;
		}
		if (!strcmp(action, "flip"))
			return flip(fd, parts, n_parts, offset);
		pause_here();
	}
	return next(fd, parts, n_parts, offset);
}

ssize_t preadv(int fd, const struct iovec *parts, int n_parts, off_t offset)
{
	return preadv64(fd, parts, n_parts, offset);
}

ssize_t pread64(int fd, void *buffer, size_t size, off_t offset)
{
	struct iovec part = {buffer, size};

	return preadv64(fd, &part, 1, offset);
}

ssize_t pread(int fd, void *buffer, size_t size, off_t offset)
{
	return pread64(fd, buffer, size, offset);
}

#include "ipc/base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* Linux 6.3 */
#endif

#define SEALS_FINAL (F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW)

int fd_close(int fd)
{
	int saved = errno;

	if (fd >= 0)
		(void)close(fd); /* Linux frees the descriptor even when close() reports an error */
	errno = saved;
	return -1;
}

int fd_memfd(const char *name, uint64_t size, int *ret_fd)
{
	cleanup(fd_closep) int fd = -1;

	if (size > INT64_MAX)
		return -EFBIG;
	fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
	if (fd < 0 && errno == EINVAL) /* a kernel without the flag */
		fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)size) < 0)
		return -errno;
	*ret_fd = take_fd(fd);
	return 0;
}

int fd_write_all(int fd, const void *data, uint64_t size)
{
	const char *p = data;

	while (size > 0) {
		ssize_t n = write(fd, p, size);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		p += n;
		size -= (uint64_t)n;
	}
	return 0;
}

int fd_read_all(int fd, void *ret, uint64_t size, uint64_t *ret_size)
{
	uint64_t got = 0;

	while (got < size) {
		ssize_t n = read(fd, (char *)ret + got, size - got);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		got += (uint64_t)n;
	}
	*ret_size = got;
	return 0;
}

int fd_sealed_copy(const char *name, const void *data, uint64_t size, int *ret_fd)
{
	cleanup(fd_closep) int fd = -1;
	int r;

	r = fd_memfd(name, 0, &fd);
	if (r < 0)
		return r;
	r = fd_write_all(fd, data, size);
	if (r < 0)
		return r;
	if (fcntl(fd, F_ADD_SEALS, SEALS_FINAL | F_SEAL_SEAL) < 0)
		return -errno;
	r = fd_reopen_readonly(fd, ret_fd);
	if (r != -ENOENT)
		return r;
	*ret_fd = take_fd(fd); /* no /proc: the seals alone have to do */
	return 0;
}

static int fd_reopen_path(int fd, int flags, int *ret_fd)
{
	char path[40];
	int new_fd;

	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	/* Or a lease that its sender has taken on the file would make us wait for 45 seconds. */
	new_fd = open(path, flags | O_CLOEXEC | O_NONBLOCK);
	if (new_fd < 0)
		return -errno;
	*ret_fd = new_fd;
	return 0;
}

int fd_reopen_readonly(int fd, int *ret_fd)
{
	return fd_reopen_path(fd, O_RDONLY, ret_fd);
}

int fd_reopen_writable(int fd, int *ret_fd)
{
	int new_fd = -1, r;

	if (fchmod(fd, 0600) < 0)
		return -errno;
	r = fd_reopen_path(fd, O_RDWR, &new_fd);
	if (fchmod(fd, 0400) < 0 && r == 0) {
		r = -errno;
		(void)fd_close(new_fd);
	}
	if (r == 0)
		*ret_fd = new_fd;
	return r;
}

/* A lease that is granted is given back at once: it was only to learn that it would be. */
static int try_lease(int fd, int type)
{
	if (fcntl(fd, F_SETLEASE, type) < 0)
		return errno == EAGAIN ? 1 : -errno;
	return fcntl(fd, F_SETLEASE, F_UNLCK) < 0 ? -errno : 0;
}

int fd_is_open_elsewhere(int fd)
{
	return try_lease(fd, F_WRLCK);
}

int fd_is_open_for_writing(int fd)
{
	return try_lease(fd, F_RDLCK);
}

bool fd_is_sealed(int fd)
{
	int seals = fcntl(fd, F_GET_SEALS); /* EINVAL for whatever is no memfd */

	return seals >= 0 && (seals & SEALS_FINAL) == SEALS_FINAL;
}

int fd_size(int fd, uint64_t *ret_size)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -EBADF;
	*ret_size = (uint64_t)st.st_size;
	return 0;
}

bool fd_is_written(int fd, uint64_t size)
{
	return size <= INT64_MAX && lseek(fd, 0, SEEK_HOLE) == (off_t)size;
}

int fd_raise_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		return -errno;
	limit.rlim_cur = limit.rlim_max;
	return setrlimit(RLIMIT_NOFILE, &limit) < 0 ? -errno : 0;
}

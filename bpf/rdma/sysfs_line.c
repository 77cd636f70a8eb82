#include "bpf/rdma/sysfs_line.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"

static bool is_regular(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
}

bool sysfs_line_read(int dir_fd, const char *path, char *ret, size_t size)
{
	cleanup(fd_closep) int fd = openat(dir_fd, path,
					   O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	ssize_t n = fd >= 0 && is_regular(fd) ? read(fd, ret, size) : 0;

	if (n <= 0 || (n == (ssize_t)size && ret[n - 1] != '\n'))
		return false;
	n -= ret[n - 1] == '\n';
	for (ssize_t i = 0; i < n; i++)
		if (ret[i] < ' ' || ret[i] > '~')
			return false;
	if (n == (ssize_t)size)
		return false;
	ret[n] = '\0';
	return n > 0;
}

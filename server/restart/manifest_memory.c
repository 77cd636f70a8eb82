#include "server/restart/manifest_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW)

static int memory_map(int fd, uint64_t size, void **ret)
{
	void *m = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (m == MAP_FAILED)
		return -errno;
	*ret = m;
	return 0;
}

int manifest_memory_new(const char *name, uint64_t size, void **ret, int *ret_fd)
{
	cleanup(fd_closep) int fd = -1;
	int r = fd_memfd(name, size, &fd);

	if (r < 0)
		return r;
	if (fcntl(fd, F_ADD_SEALS, SEALS) < 0 || fchmod(fd, 0400) < 0)
		return -errno;
	r = memory_map(fd, size, ret);
	if (r == 0)
		*ret_fd = take_fd(fd);
	return r;
}

int manifest_memory_open(int fd, uint64_t size, void **ret)
{
	uint64_t found;
	int r = fd_size(fd, &found);

	if (r == 0 && (found != size || (fcntl(fd, F_GET_SEALS) & SEALS) != SEALS))
		r = -EBADF;
	return r < 0 ? r : memory_map(fd, size, ret);
}

void manifest_memory_free(void *m, uint64_t size)
{
	if (m)
		(void)munmap(m, size);
}

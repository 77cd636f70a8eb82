#include "server/sync/base/memory.h"

#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>

int memory_init(struct memory *m, int fd, uint64_t size, bool is_source, bool is_read_here)
{
	void *map;

	*m = (struct memory){.fd = fd, .size = size};
	if (size == 0 || (is_source && !is_read_here))
		return 0;
	map = mmap(NULL, size, is_source ? PROT_READ : PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return -errno;
	m->map = map;
	return 0;
}

void memory_deinit(struct memory *m)
{
	if (m->map)
		(void)munmap(m->map, m->size);
	m->map = NULL;
}

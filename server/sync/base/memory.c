#include "server/sync/base/memory.h"

#include <stddef.h>
#include <sys/mman.h>

#include "ipc/base/mapping.h"

int memory_init(struct memory *m, int fd, uint64_t size, bool is_source, bool is_read_here)
{
	void *map;
	int r;

	*m = (struct memory){.fd = fd, .size = size};
	if (size == 0 || (is_source && !is_read_here))
		return 0;
	r = mapping_new(fd, size, is_source ? PROT_READ : PROT_READ | PROT_WRITE, NULL, &map);
	if (r < 0)
		return r;
	m->map = map;
	return 0;
}

void memory_deinit(struct memory *m)
{
	mapping_free(m->map, m->size);
	m->map = NULL;
}

#include "server/sync/base/memory.h"

#include <stddef.h>
#include <sys/mman.h>

#include "ipc/base/mapping.h"

/* Maps what is in front of the bytes, too: at any other place huge pages would not fit. */
int memory_init(struct memory *m, int fd, uint64_t at, uint64_t size, bool is_source,
		bool is_read_here)
{
	void *map;
	int r;

	*m = (struct memory){.fd = fd, .at = at, .size = size};
	if (size == 0 || (is_source && !is_read_here))
		return 0;
	r = mapping_new(fd, at + size, is_source ? PROT_READ : PROT_READ | PROT_WRITE, NULL, &map);
	if (r < 0)
		return r;
	m->map = (uint8_t *)map + at;
	return 0;
}

void memory_deinit(struct memory *m)
{
	if (m->map)
		mapping_free(m->map - m->at, m->at + m->size);
	m->map = NULL;
}

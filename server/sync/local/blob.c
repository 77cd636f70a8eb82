#include "server/sync/local/blob.h"

#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>

#include "ipc/base/fd.h"

int blob_map(int fd, uint64_t max, struct blob *ret)
{
	uint64_t size;
	void *data;

	if (!fd_is_sealed(fd) || fd_size(fd, &size) < 0 || size > max)
		return -EBADMSG;
	if (size == 0) {
		*ret = (struct blob){.data = ""};
		return 0;
	}
	data = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
	if (data == MAP_FAILED)
		return -errno;
	*ret = (struct blob){.data = data, .size = size};
	return 0;
}

void blob_deinit(struct blob *b)
{
	if (b->size)
		(void)munmap((void *)b->data, b->size);
	*b = (struct blob){0};
}

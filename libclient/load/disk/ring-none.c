/* Built without liburing: readers read by pread(). */
#include <errno.h>
#include <stddef.h>

#include "libclient/load/disk/ring.h"

int ring_new(unsigned n, struct ring **ret)
{
	(void)n;
	(void)ret;
	return -ENOSYS;
}

struct ring *ring_free(struct ring *ring)
{
	(void)ring;
	return NULL;
}

int ring_begin(struct ring *ring)
{
	(void)ring;
	return -ENOSYS;
}

int ring_read(struct ring *ring, const struct ring_read *read)
{
	(void)ring;
	(void)read;
	return -ENOSYS;
}

int ring_wait(struct ring *ring, void **ret_tag, int *ret_result)
{
	(void)ring;
	(void)ret_tag;
	(void)ret_result;
	return -ENOSYS;
}

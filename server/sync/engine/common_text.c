#include "server/sync/engine/common_text.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "ipc/base/fd.h"

int common_text_init(struct common_text *t, int fd, uint64_t max, const char *what,
		     char why[ENGINE_ORDER_WHY_SIZE])
{
	uint64_t size;
	void *data;
	int r;

	if (fd_size(fd, &size) < 0 || size == 0 || size > max) {
		(void)snprintf(why, ENGINE_ORDER_WHY_SIZE,
			       "the order is wrong: the %s must have 1 to %llu bytes", what,
			       (unsigned long long)max);
		return -EBADMSG;
	}
	data = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (data == MAP_FAILED) {
		r = -errno;
		(void)snprintf(why, ENGINE_ORDER_WHY_SIZE, "the %s cannot be mapped: %s", what,
			       strerror(-r));
		return r;
	}
	*t = (struct common_text){.data = data, .size = size};
	merkle_hash(data, size, t->hash);
	return 0;
}

void common_text_deinit(struct common_text *t)
{
	if (t->data)
		(void)munmap(t->data, t->size);
	*t = (struct common_text){0};
}

#include "server/memory/layout_validation.h"

#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>

#include "ipc/base/fd.h"
#include "server/base/worker.h"

void layout_validation_init(struct layout_validation *i)
{
	*i = (struct layout_validation){.fd = -1};
}

void layout_validation_deinit(struct layout_validation *i)
{
	layout_check_deinit(&i->check);
	if (i->image)
		(void)munmap((void *)i->image, i->size);
	i->image = NULL;
}

/* Sealed, so that it cannot change under us. */
int layout_validation_open(struct layout_validation *i, int fd)
{
	void *image;
	int r;

	if (!fd_is_sealed(fd) || fd_size(fd, &i->size) < 0 || i->size == 0 ||
	    i->size > LAYOUT_SIZE_MAX)
		return -EBADMSG;
	r = fd_reopen_readonly(fd, &i->fd);
	if (r < 0)
		return r;
	image = mmap(NULL, i->size, PROT_READ, MAP_SHARED, i->fd, 0);
	if (image == MAP_FAILED)
		return -errno;
	i->image = image;
	return 0;
}

static int layout_validation_check(struct layout_validation *i)
{
	int r;

	if (i->check.leaves)
		return layout_check_step(&i->check);
	/* Or reading it would take memory of ours, and past a cgroup's limit the kernel kills. */
	if (!fd_is_written(i->fd, i->size)) {
		i->check.why = "it has holes";
		return -EBADMSG;
	}
	r = layout_check_init(&i->check, i->image, i->size);
	return r < 0 ? r : JOB_AGAIN;
}

int layout_validation_step(struct layout_validation *i)
{
	int r = layout_validation_check(i);

	if (r > 0)
		return r;
	if (r == 0)
		i->header = *i->check.layout.header;
	layout_validation_deinit(i); /* here, since that takes long for a big one */
	return r;
}

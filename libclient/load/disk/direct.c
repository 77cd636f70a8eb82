#include "libclient/load/disk/direct.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"

/* A file system that does not report its alignment, or has an older kernel, gets pages. */
static int alignment_of(int fd, uint32_t *ret)
{
	uint32_t align = DIRECT_ALIGN_MAX;
#ifdef STATX_DIOALIGN
	struct statx x = {0};

	if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &x) == 0 && x.stx_mask & STATX_DIOALIGN) {
		align = x.stx_dio_mem_align > x.stx_dio_offset_align ? x.stx_dio_mem_align
								     : x.stx_dio_offset_align;
		if (x.stx_dio_mem_align == 0 || x.stx_dio_offset_align == 0)
			return -EOPNOTSUPP;
	}
#endif
	if (!num_is_power_of_two(align) || align > DIRECT_ALIGN_MAX)
		return -EOPNOTSUPP;
	*ret = align;
	return 0;
}

/* By its path: O_DIRECT of fcntl(2) would be for the other descriptor too, and a chroot may have no /proc. */
static int open_again(const struct file *f, int *ret)
{
	cleanup(fd_closep) int fd = open(f->path,
					 O_RDONLY | O_DIRECT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	if (st.st_dev != f->identity.dev || st.st_ino != f->identity.ino)
		return -ESTALE;
	if (fcntl(fd, F_SETFL, O_DIRECT) < 0)
		return -errno;
	*ret = take_fd(fd);
	return 0;
}

int direct_open(const struct file *f, struct direct *ret)
{
	uint32_t align;
	int fd = -1, r = alignment_of(f->fd, &align);

	if (r == 0)
		r = open_again(f, &fd);
	if (r < 0)
		return r;
	*ret = (struct direct){fd, align};
	return 0;
}

void direct_close(struct direct *d)
{
	d->fd = fd_close(d->fd);
}

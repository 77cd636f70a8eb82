#include "server/memory/digests.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/stat.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "server/base/headroom.h"

#define SIZE_SEALS (F_SEAL_SHRINK | F_SEAL_GROW)

void digests_init(struct digests *d)
{
	*d = (struct digests){.fd = -1, .reader_fd = -1};
}

void digests_close(struct digests *d)
{
	d->fd = fd_close(d->fd);
	d->reader_fd = fd_close(d->reader_fd);
}

int digests_new(struct digests *d, uint64_t size)
{
	cleanup(fd_closep) int fd = -1;
	int r = fd_memfd("weightd-digests", size, &fd);

	if (r < 0)
		return r;
	if (fcntl(fd, F_ADD_SEALS, SIZE_SEALS) < 0 || fchmod(fd, 0400) < 0)
		return -errno;
	r = fd_reopen_readonly(fd, &d->reader_fd);
	if (r < 0)
		return r;
	d->size = size;
	d->fd = take_fd(fd);
	return 0;
}

static int fill_holes(const struct digests *d)
{
	int r;

	do
		r = fallocate(d->fd, 0, 0, (off_t)d->size);
	while (r < 0 && errno == EINTR);
	if (r < 0)
		return errno == ENOSPC ? -ENOMEM : -errno;
	return 0;
}

int digests_provide(const struct digests *d)
{
	uint64_t room;
	int r;

	if (d->size == 0)
		return 0;
	r = headroom_bytes(&room);
	if (r < 0)
		return r;
	return room < d->size ? -ENOMEM : fill_holes(d);
}

int digests_recover(struct digests *d, uint64_t size, int fd)
{
	int seals = fcntl(fd, F_GET_SEALS);
	uint64_t found;

	if (seals < 0 || (seals & SIZE_SEALS) != SIZE_SEALS || fd_size(fd, &found) < 0 ||
	    found != size)
		return -EBADMSG;
	d->size = size;
	d->reader_fd = fd;
	return 0;
}

int digests_open(struct digests *d)
{
	return d->size == 0 || d->fd >= 0 ? 0 : fd_reopen_writable(d->reader_fd, &d->fd);
}

void digests_shut(struct digests *d)
{
	d->fd = fd_close(d->fd);
}

int digests_seal(const struct digests *d)
{
	if (d->size == 0 || d->fd < 0)
		return 0;
	if (!fd_is_sealed(d->fd) && fcntl(d->fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SEAL) < 0)
		return -errno;
	/* Until it is sealed a writer can punch holes, and a reader that maps these would take memory. */
	return fill_holes(d);
}

/*
 * If a page is missing when an engine writes it, the result is a signal, or an OOM kill of another
 * process. So memory is allocated while it can still be refused, a step at a time, and the free
 * memory is checked before each step.
 */
#include "server/sync/local/staging.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/base/headroom.h"

#define STRETCH_SIZE (256 * MIB)

static int staging_refuse(uint64_t needed, uint64_t room, const char *limit, struct fault *f)
{
	char needs[NUM_SIZE_MAX], has[NUM_SIZE_MAX];

	if (limit[0])
		return fault_set(f, -ENOMEM,
				 "a version on a GPU goes through host memory between nodes: %s of "
				 "it are needed for a while, and the limit of a cgroup leaves %s: "
				 "%s; raise that limit (MemoryMax= of a unit)",
				 num_format_size(needs, needed), num_format_size(has, room), limit);
	return fault_set(f, -ENOMEM,
			 "a version on a GPU goes through host memory between nodes: %s of it are "
			 "needed for a while, and %s of this machine's are free; free some",
			 num_format_size(needs, needed), num_format_size(has, room));
}

/*
 * `missing` bytes of the whole are still to be allocated; if the kernel has refused them, they do
 * not fit.
 */
static int staging_check_room(uint64_t whole, uint64_t missing, bool is_refused, struct fault *f)
{
	struct headroom room;
	int r = headroom_find(&room);

	if (r < 0)
		return fault_set(f, r, "/proc/meminfo cannot be read: %s", strerror(-r));
	if (missing <= room.bytes && !is_refused)
		return 0;
	return staging_refuse(whole, room.bytes + (whole - missing), room.limit, f);
}

int staging_check(uint64_t size, struct fault *f)
{
	return staging_check_room(size, size, false, f);
}

int staging_open(uint64_t size, struct staging *ret, struct fault *f)
{
	cleanup(fd_closep) int fd = -1;
	int r = fd_memfd("weightd-sync-staging", size, &fd);
	void *data = MAP_FAILED;

	if (r == 0) {
		/* An empty staging maps one byte that is never touched. */
		data = mmap(NULL, size ? size : 1, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		r = data == MAP_FAILED ? -errno : 0;
	}
	if (r < 0)
		return fault_set(f, r, "cannot create the copy in host memory: %s", strerror(-r));
	*ret = (struct staging){.fd = take_fd(fd), .data = data, .size = size};
	return 0;
}

int staging_take(struct staging *s, uint64_t at, uint64_t end, struct fault *f)
{
	const uint64_t begin = at;

	for (; at < end; at += STRETCH_SIZE) {
		uint64_t left = end - at;
		int r = staging_check_room(end - begin, left, false, f);

		if (r < 0)
			return r;
		while (fallocate(s->fd, 0, (off_t)at,
				 (off_t)(left < STRETCH_SIZE ? left : STRETCH_SIZE)) < 0)
			if (errno != EINTR)
				return staging_check_room(end - begin, left, true, f);
	}
	return 0;
}

int staging_fill(struct staging *s, struct fault *f)
{
	return staging_take(s, 0, s->size, f);
}

static void staging_unmap(struct staging *s)
{
	if (s->data)
		(void)munmap(s->data, s->size ? s->size : 1);
	s->data = NULL;
}

int staging_seal(struct staging *s, struct fault *f)
{
	staging_unmap(s);
	if (fcntl(s->fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW) < 0)
		return fault_set(f, -errno, "cannot seal the copy: %s", strerror(errno));
	s->fd = fd_close(s->fd);
	return 0;
}

void staging_deinit(struct staging *s)
{
	staging_unmap(s);
	(void)fd_close(s->fd);
	*s = STAGING_NONE;
}

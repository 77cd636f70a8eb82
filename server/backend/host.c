/*
 * Host memory
 *
 * A slot is a memfd that cannot shrink or grow. Its pages are huge where the kernel gives them: one
 * byte of each 2 MiB is touched and the range collapsed, which works with any shmem_enabled and
 * makes the page before it is filled (0.07 s a GiB here; collapsing pages that fallocate had made
 * took 0.5 s, since it copies them). fallocate comes second and fills the rest, so that no block is
 * missing.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "server/backend/backend.h"
#include "server/base/headroom.h"
#include "server/state/server.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

#define LOOK_SIZE (64 * MIB) /* provided at most between looks at the memory that is free */
#define HUGE_SIZE (2 * MIB)
#define PART_SIZE HUGE_SIZE /* a step lasts for one more than its time */
#define STEP_NS 1000000u /* other users' jobs wait for a step */

static bool host_has_device(const char *device)
{
	return !strcmp(device, "host");
}

static struct worker *host_worker(struct server *server)
{
	return &server->worker;
}

static int host_allocate(struct backend_memory *m)
{
	cleanup(fd_closep) int fd = -1;
	int r = fd_memfd(m->label ? m->label : "weightd-slot", m->size, &fd);

	if (r < 0)
		return r;
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0)
		return -errno;
	/*
	 * The descriptor of memfd_create() does not count as open for writing, so a lease would be
	 * granted while a writer has it. One that was opened does count. Its mode of 0400 keeps
	 * other users from opening it through /proc, even when a client passes it on, until it is
	 * sealed.
	 */
	m->location.map_size = m->size;
	return fd_reopen_writable(fd, &m->fd);
}

/* Makes huge pages of [start, start + size) where that works, and returns how many bytes that was. */
static uint64_t host_collapse(int fd, uint64_t start, uint64_t size)
{
	uint64_t huge = 0;
	char *area, *p;

	if (size == 0)
		return 0;
	/* Room to find an address that is aligned like the file. */
	area = mmap(NULL, size + HUGE_SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (area == MAP_FAILED)
		return 0;
	p = (char *)(((uintptr_t)area + HUGE_SIZE - 1) & ~(uintptr_t)(HUGE_SIZE - 1));
	if (mmap(p, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, (off_t)start) !=
	    MAP_FAILED)
		for (uint64_t at = 0; at + HUGE_SIZE <= size; at += HUGE_SIZE) {
			*(volatile char *)(p + at) = 0; /* a range without any page is EINVAL */
			if (madvise(p + at, HUGE_SIZE, MADV_COLLAPSE) == 0)
				huge += HUGE_SIZE;
		}
	(void)munmap(area, size + HUGE_SIZE);
	return huge;
}

static int host_measure(struct backend_memory *m, uint64_t *ret_free)
{
	struct headroom headroom;
	int r = headroom_find(&headroom);

	if (r < 0)
		return r;
	memcpy(m->limit, headroom.limit, sizeof(m->limit));
	*ret_free = headroom.bytes;
	return 0;
}

/* Not where other memory was provided since. */
bool host_has_looked(const struct backend_memory *m)
{
	return m->server->providing == m && m->progress.done < m->progress.allowed;
}

/*
 * All that is still to be provided must fit, or the step before the last finds out too late. 0, -ENOMEM
 * or another errno.
 */
static int host_find_room(struct backend_memory *m)
{
	struct backend_progress *progress = &m->progress;
	uint64_t needed = m->size - progress->done;
	struct headroom headroom;
	int r;

	if (host_has_looked(m))
		return 0;
	r = headroom_find(&headroom);
	if (r < 0)
		return r;
	if (headroom.bytes < needed) {
		progress->missing = needed - headroom.bytes;
		memcpy(m->limit, headroom.limit, sizeof(m->limit));
		return -ENOMEM;
	}
	progress->allowed = progress->done + (needed < LOOK_SIZE ? needed : LOOK_SIZE);
	m->server->providing = m;
	return 0;
}

/* Returns 0, and then some more is done; or an errno. */
static int host_provide_part(struct backend_memory *m)
{
	struct backend_progress *progress = &m->progress;
	uint64_t start = progress->done;
	uint64_t n = m->size - start < PART_SIZE ? m->size - start : PART_SIZE;
	int r;

	progress->huge += host_collapse(m->fd, start, n & ~(HUGE_SIZE - 1));
	do
		r = fallocate(m->fd, 0, (off_t)start, (off_t)n);
	while (r < 0 && errno == EINTR);
	if (r < 0) {
		progress->missing = n;
		return errno == ENOSPC ? -ENOMEM : -errno;
	}
	progress->done += n;
	return 0;
}

static int host_provide(struct backend_memory *m)
{
	struct backend_progress *progress = &m->progress;
	uint64_t deadline_ns = num_now_ns() + STEP_NS;

	if (progress->done == m->size)
		return JOB_DONE;
	do {
		int r = host_find_room(m);

		if (r == 0)
			r = host_provide_part(m);
		if (r < 0)
			return r;
	} while (progress->done < m->size && num_now_ns() < deadline_ns);
	return progress->done < m->size ? JOB_AGAIN : JOB_DONE;
}

/*
 * A writer can have the page around the end made huge, and blocks behind the end make up for holes before
 * it. They are one huge page at most: filling the holes takes no more than that, and shows them.
 */
static bool is_whole(int fd, uint64_t size)
{
	struct stat st, filled;
	uint64_t in_pages;

	if (fstat(fd, &st) < 0 || (uint64_t)st.st_size != size ||
	    !num_align_up(size, (uint64_t)sysconf(_SC_PAGESIZE), &in_pages) ||
	    (uint64_t)st.st_blocks * 512 < in_pages)
		return false;
	if ((uint64_t)st.st_blocks * 512 == in_pages)
		return true;
	return fallocate(fd, 0, 0, (off_t)size) == 0 && fstat(fd, &filled) == 0 &&
	       filled.st_blocks == st.st_blocks;
}

static int host_seal(int fd, uint64_t size)
{
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SEAL) < 0)
		return -errno;
	/* Only now: until it is sealed a writer can punch holes, which the seal itself allows. */
	return is_whole(fd, size) ? 0 : -ENODATA;
}

static int host_share(int fd)
{
	return fchmod(fd, 0444) < 0 ? -errno : 0;
}

static int host_is_whole(int fd, uint64_t size)
{
	return is_whole(fd, size) ? 0 : -ENODATA;
}

static int host_describe(int fd, uint64_t *ret_size, uint64_t *ret_allocated, bool *ret_sealed)
{
	int seals = fcntl(fd, F_GET_SEALS);
	struct stat st;

	if (seals < 0 || fstat(fd, &st) < 0)
		return -errno;
	if (!(seals & F_SEAL_SHRINK) || !(seals & F_SEAL_GROW))
		return -EBADF;
	*ret_size = (uint64_t)st.st_size;
	*ret_allocated = (uint64_t)st.st_blocks * 512;
	*ret_sealed = seals & F_SEAL_WRITE;
	return 0;
}

const struct backend backend_host = {
	.memory = WIRE_MEMORY_HOST,
	.has_device = host_has_device,
	.worker = host_worker,
	.allocate = host_allocate,
	.provide = host_provide,
	.measure = host_measure,
	.reader = fd_reopen_readonly,
	.writable = fd_reopen_writable,
	.in_use = fd_is_open_elsewhere,
	.has_writer = fd_is_open_for_writing,
	.describe = host_describe,
	.is_whole = host_is_whole,
	.seal = host_seal,
	.share = host_share,
};

/*
 * Mappings as perf(1) gets them: one ring of the kernel for each processor. The kernel reports threads that begin and
 * end, too, which cannot be switched off. Processors that are switched on later have no ring.
 */
#include <errno.h>
#include <linux/perf_event.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "bpf/probe/mmap_watch.h"
#include "ipc/base/fd.h"
#include "ipc/base/list.h"

#define PAGES 16 /* size of each ring, a power of two */
#define RECORD_MAX 65536 /* the most that its size field can hold */
/* Debian's kernel has this level, and asks for CAP_SYS_ADMIN then. */
#define PARANOID_HINT                                                                              \
	"; CAP_PERFMON suffices after 'sysctl kernel.perf_event_paranoid=2' if that is 3"

struct ring {
	int fd;
	struct perf_event_mmap_page *page; /* and the ring behind it */
};

struct mmap_watch_of_perf {
	struct mmap_watch mmap_watch;
	int epoll_fd;
	size_t n_rings, ring_size, page_size;
	struct ring *rings;
	_Alignas(8) uint8_t record[RECORD_MAX]; /* one, in one piece */
};

/* The kernel's record of a mapping: PERF_RECORD_MMAP2. */
struct mapped {
	struct perf_event_header header;
	uint32_t pid, tid;
	uint64_t address, size, offset;
	uint32_t major, minor;
	uint64_t ino, generation;
	uint32_t protection, flags;
	char path[];
};

static void ring_close(const struct mmap_watch_of_perf *p, struct ring *ring)
{
	if (ring->page)
		(void)munmap(ring->page, p->page_size + p->ring_size);
	(void)fd_close(ring->fd);
}

static void perf_close(struct mmap_watch *a)
{
	struct mmap_watch_of_perf *p = container_of(a, struct mmap_watch_of_perf, mmap_watch);

	for (size_t i = 0; i < p->n_rings; i++)
		ring_close(p, &p->rings[i]);
	(void)fd_close(p->epoll_fd);
	free(p->rings);
	free(p);
}

/* -ENODEV: the processor is off. */
static int ring_open(struct mmap_watch_of_perf *p, int processor)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_SOFTWARE,
		.size = sizeof(attr),
		.config = PERF_COUNT_SW_DUMMY,
		.exclude_kernel = 1,
		.mmap = 1,
		.mmap2 = 1,
		.watermark = 1,
		.wakeup_watermark = 1,
	};
	struct ring ring = {.fd = (int)syscall(SYS_perf_event_open, &attr, -1, processor, -1,
					       PERF_FLAG_FD_CLOEXEC)};
	struct epoll_event event = {.events = EPOLLIN};
	void *page;

	if (ring.fd < 0)
		return -errno;
	page = mmap(NULL, p->page_size + p->ring_size, PROT_READ | PROT_WRITE, MAP_SHARED, ring.fd,
		    0);
	if (page != MAP_FAILED)
		ring.page = page;
	if (!ring.page || epoll_ctl(p->epoll_fd, EPOLL_CTL_ADD, ring.fd, &event) < 0) {
		int r = -errno;

		ring_close(p, &ring);
		return r;
	}
	p->rings[p->n_rings++] = ring;
	return 0;
}

static int perf_open_rings(struct mmap_watch_of_perf *p)
{
	int n = get_nprocs_conf(), r;

	p->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (p->epoll_fd < 0)
		return -errno;
	p->page_size = (size_t)sysconf(_SC_PAGESIZE);
	p->ring_size = PAGES * p->page_size;
	p->rings = calloc((size_t)n, sizeof(*p->rings));
	if (!p->rings)
		return -ENOMEM;
	for (int i = 0; i < n; i++) {
		r = ring_open(p, i);
		if (r < 0 && r != -ENODEV)
			return r;
	}
	return 0;
}

static int perf_open(struct mmap_watch **ret, char ret_why[WHY_SIZE])
{
	struct mmap_watch_of_perf *p = calloc(1, sizeof(*p));
	int r;

	if (!p)
		return -ENOMEM;
	p->mmap_watch.kind = &mmap_watch_perf;
	r = perf_open_rings(p);
	if (r < 0) {
		(void)snprintf(ret_why, WHY_SIZE, "the kernel refuses it: %s%s", strerror(-r),
			       r == -EACCES ? PARANOID_HINT : "");
		perf_close(&p->mmap_watch);
		return r;
	}
	*ret = &p->mmap_watch;
	return 0;
}

static int perf_fd(const struct mmap_watch *a)
{
	return container_of(a, const struct mmap_watch_of_perf, mmap_watch)->epoll_fd;
}

/* Copies from anywhere in the ring. The end of the ring is followed by its beginning. */
static void ring_copy(const struct mmap_watch_of_perf *p, const struct ring *ring, uint64_t at,
		      void *to, size_t n)
{
	const uint8_t *bytes = (const uint8_t *)ring->page + p->page_size;
	size_t begin = (size_t)(at % p->ring_size), first = p->ring_size - begin;

	if (first > n)
		first = n;
	memcpy(to, bytes + begin, first);
	memcpy((uint8_t *)to + first, bytes, n - first);
}

static const char *name_of(char *path, size_t size)
{
	const char *slash;

	path[size - 1] = 0; /* it is padded with zeros, by the kernel */
	slash = strrchr(path, '/');
	return slash ? slash + 1 : path;
}

static int ring_take(struct mmap_watch_of_perf *p, struct ring *ring, mmap_watch_fn fn,
		     void *context)
{
	uint64_t head = __atomic_load_n(&ring->page->data_head, __ATOMIC_ACQUIRE);
	uint64_t tail = ring->page->data_tail;
	struct mapped *m = (struct mapped *)p->record;
	bool is_all = true;
	int n = 0;

	for (; tail < head; n++) {
		struct perf_event_header header;

		ring_copy(p, ring, tail, &header, sizeof(header));
		ring_copy(p, ring, tail, p->record, header.size);
		if (header.type == PERF_RECORD_MMAP2 && header.size > sizeof(*m))
			fn(context, (pid_t)m->pid, name_of(m->path, header.size - sizeof(*m)));
		is_all &= header.type != PERF_RECORD_LOST;
		/* The kernel writes none that is smaller. */
		tail += header.size < sizeof(header) ? sizeof(header) : header.size;
	}
	__atomic_store_n(&ring->page->data_tail, tail, __ATOMIC_RELEASE);
	return is_all ? n : -ENOBUFS;
}

static int perf_take(struct mmap_watch *a, mmap_watch_fn fn, void *context)
{
	struct mmap_watch_of_perf *p = container_of(a, struct mmap_watch_of_perf, mmap_watch);
	int n = 0;

	for (size_t i = 0; i < p->n_rings; i++) {
		int r = ring_take(p, &p->rings[i], fn, context);

		n = r < 0 || n < 0 ? -ENOBUFS : n + r;
	}
	return n;
}

const struct mmap_watch_kind mmap_watch_perf = {
	.hook = "perf/mmap",
	.open = perf_open,
	.close = perf_close,
	.fd = perf_fd,
	.take = perf_take,
};

/*
 * One ring of the kernel's for each processor. It tells of threads that begin and end, too, which cannot be had without.
 * Processors that are switched on later have none.
 */
#include "bpf/arrivals.h"

#include <errno.h>
#include <linux/perf_event.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"

#define PAGES 16 /* of each ring, a power of two */
#define RECORD_MAX 65536 /* what its size can say */

struct ring {
	int fd;
	struct perf_event_mmap_page *page; /* and the ring behind it */
};

struct arrivals {
	int epoll_fd;
	size_t n_rings, ring_size, page_size;
	struct ring *rings;
	_Alignas(8) uint8_t record[RECORD_MAX]; /* one, in one piece */
};

/* What the kernel writes of a mapping: PERF_RECORD_MMAP2. */
struct mapped {
	struct perf_event_header header;
	uint32_t pid, tid;
	uint64_t address, size, offset;
	uint32_t major, minor;
	uint64_t ino, generation;
	uint32_t protection, flags;
	char path[];
};

static void ring_close(const struct arrivals *a, struct ring *ring)
{
	if (ring->page)
		(void)munmap(ring->page, a->page_size + a->ring_size);
	(void)fd_close(ring->fd);
}

void arrivals_close(struct arrivals *a)
{
	if (!a)
		return;
	for (size_t i = 0; i < a->n_rings; i++)
		ring_close(a, &a->rings[i]);
	(void)fd_close(a->epoll_fd);
	free(a->rings);
	free(a);
}

static void closep(struct arrivals **a)
{
	arrivals_close(*a);
}

/* -ENODEV: the processor is off. */
static int ring_open(struct arrivals *a, int processor)
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
	page = mmap(NULL, a->page_size + a->ring_size, PROT_READ | PROT_WRITE, MAP_SHARED, ring.fd,
		    0);
	if (page != MAP_FAILED)
		ring.page = page;
	if (!ring.page || epoll_ctl(a->epoll_fd, EPOLL_CTL_ADD, ring.fd, &event) < 0) {
		int r = -errno;

		ring_close(a, &ring);
		return r;
	}
	a->rings[a->n_rings++] = ring;
	return 0;
}

int arrivals_open(struct arrivals **ret)
{
	cleanup(closep) struct arrivals *a = calloc(1, sizeof(*a));
	int n = get_nprocs_conf(), r;

	if (!a)
		return -ENOMEM;
	a->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (a->epoll_fd < 0)
		return -errno;
	a->page_size = (size_t)sysconf(_SC_PAGESIZE);
	a->ring_size = PAGES * a->page_size;
	a->rings = calloc((size_t)n, sizeof(*a->rings));
	if (!a->rings)
		return -ENOMEM;
	for (int i = 0; i < n; i++) {
		r = ring_open(a, i);
		if (r < 0 && r != -ENODEV)
			return r;
	}
	*ret = take_ptr(a);
	return 0;
}

int arrivals_fd(const struct arrivals *a)
{
	return a->epoll_fd;
}

/* From anywhere in the ring, whose end is followed by its beginning. */
static void copy(const struct arrivals *a, const struct ring *ring, uint64_t at, void *to, size_t n)
{
	const uint8_t *bytes = (const uint8_t *)ring->page + a->page_size;
	size_t begin = (size_t)(at % a->ring_size), first = a->ring_size - begin;

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

static int ring_take(struct arrivals *a, struct ring *ring,
		     void (*fn)(void *context, pid_t pid, const char *name), void *context)
{
	uint64_t head = __atomic_load_n(&ring->page->data_head, __ATOMIC_ACQUIRE);
	uint64_t tail = ring->page->data_tail;
	struct mapped *m = (struct mapped *)a->record;
	bool is_all = true;
	int n = 0;

	for (; tail < head; n++) {
		struct perf_event_header header;

		copy(a, ring, tail, &header, sizeof(header));
		copy(a, ring, tail, a->record, header.size);
		if (header.type == PERF_RECORD_MMAP2 && header.size > sizeof(*m))
			fn(context, (pid_t)m->pid, name_of(m->path, header.size - sizeof(*m)));
		is_all &= header.type != PERF_RECORD_LOST;
		/* The kernel writes none that is smaller. */
		tail += header.size < sizeof(header) ? sizeof(header) : header.size;
	}
	__atomic_store_n(&ring->page->data_tail, tail, __ATOMIC_RELEASE);
	return is_all ? n : -ENOBUFS;
}

int arrivals_take(struct arrivals *a, void (*fn)(void *context, pid_t pid, const char *name),
		  void *context)
{
	int n = 0;

	for (size_t i = 0; i < a->n_rings; i++) {
		int r = ring_take(a, &a->rings[i], fn, context);

		n = r < 0 || n < 0 ? -ENOBUFS : n + r;
	}
	return n;
}

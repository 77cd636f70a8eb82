/*
 * Host memory
 *
 * A slot is a memfd that cannot shrink or grow. Its pages are huge where the kernel gives them: one
 * page of each 2 MiB is made and the range collapsed, which works with any shmem_enabled and
 * makes the page before it is filled (0.07 s a GiB here; collapsing pages that fallocate had made
 * took 0.5 s, since it copies them). fallocate comes second and fills the rest, so that no block is
 * missing.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "ipc/base/numa.h"
#include "server/backend/backend.h"
#include "server/base/headroom.h"
#include "server/base/threads/crew.h"
#include "server/state/server.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

#define LOOK_SIZE (64 * MIB) /* provided at most between looks at the memory that is free */
#define HUGE_SIZE (2 * MIB)
#define PART_SIZE HUGE_SIZE /* a step lasts for one more than its time */
#define STEP_PARTS 8
#define STEP_SIZE (STEP_PARTS * PART_SIZE)
#define STEP_NS 1000000u /* other users' jobs wait for a step */

static bool host_has_device(const char *device)
{
	return !strcmp(device, "host");
}

static struct worker *host_worker(struct server *server)
{
	return &server->worker;
}

static int host_allocate(struct backend_memory *m, const struct numa_policy *numa)
{
	cleanup(fd_closep) int fd = -1;
	int r = fd_memfd(m->label ? m->label : "weightd-slot", m->size, &fd);

	if (r < 0)
		return r;
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0)
		return -errno;
	if (numa && numa->mode != NUMA_DEFAULT)
		r = numa_set_file_policy(fd, m->size, numa);
	if (r < 0)
		return r;
	/*
	 * The descriptor of memfd_create() does not count as open for writing, so a lease would be
	 * granted while a writer has it. One that was opened does count. Its mode of 0400 keeps
	 * other users from opening it through /proc, even when a client passes it on, until it is
	 * sealed.
	 */
	m->location.map_size = m->size;
	return fd_reopen_writable(fd, &m->fd);
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

/* On full nodes that it is bound to, the kernel would kill processes, whatever the others have free. */
static void host_look_at_nodes(struct backend_memory *m, const struct numa_nodes *nodes,
			       struct headroom *headroom)
{
	uint64_t left = headroom_of_nodes(nodes);

	if (left >= headroom->bytes)
		return;
	headroom->bytes = left;
	headroom->limit[0] = '\0';
	(void)numa_nodes_format(m->nodes, nodes);
}

/*
 * All that is still to be provided must fit, or the step before the last finds out too late. 0, -ENOMEM
 * or another errno.
 */
static int host_find_room(struct backend_memory *m, const struct numa_policy *policy)
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
	m->nodes[0] = '\0';
	if (policy->mode == NUMA_BIND)
		host_look_at_nodes(m, &policy->nodes, &headroom);
	if (headroom.bytes < needed) {
		progress->missing = needed - headroom.bytes;
		memcpy(m->limit, headroom.limit, sizeof(m->limit));
		return -ENOMEM;
	}
	progress->allowed = progress->done + (needed < LOOK_SIZE ? needed : LOOK_SIZE);
	m->server->providing = m;
	return 0;
}

/* --- A step of providing ------------------------------------------------------------------------ */

/* Parts of a slot, one behind the other, that the worker and its crew make. */
struct step {
	int fd;
	struct numa_policy policy;
	uint64_t start, end; /* in the slot */
	uint64_t deadline_ns;
	_Atomic unsigned next; /* part that nobody has taken */
	struct part {
		int r;
		uint64_t huge; /* bytes of it in huge pages */
	} parts[STEP_PARTS];
};

static unsigned n_parts(const struct step *s)
{
	return (unsigned)((s->end - s->start + PART_SIZE - 1) / PART_SIZE);
}

/*
 * The offset of the page in a huge page at `start` that is made first. The kernel makes the huge page on the node of that
 * one. It interleaves a file by the numbers of pages, so that the first ones of all huge pages would be on the same node,
 * if the number of nodes is a power of two.
 */
static uint64_t first_page(const struct numa_policy *policy, uint64_t start)
{
	const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), n = numa_nodes_count(&policy->nodes);
	uint64_t wanted = start / HUGE_SIZE, first = start / page;

	if (policy->mode != NUMA_INTERLEAVE)
		return 0;
	return (wanted % n + n - first % n) % n * page % HUGE_SIZE;
}

/* Makes huge pages of [start, start + size) where that works, and returns how many bytes that was. */
static uint64_t host_collapse(const struct step *s, uint64_t start, uint64_t size)
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
	if (mmap(p, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, s->fd, (off_t)start) !=
	    MAP_FAILED)
		for (uint64_t at = 0; at + HUGE_SIZE <= size; at += HUGE_SIZE) {
			/* A range without any page is EINVAL. After a restart a writer may have filled it. */
			char *first = p + at + first_page(&s->policy, start + at);

			if (madvise(first, 1, MADV_POPULATE_WRITE) == 0 &&
			    madvise(p + at, HUGE_SIZE, MADV_COLLAPSE) == 0)
				huge += HUGE_SIZE;
		}
	(void)munmap(area, size + HUGE_SIZE);
	return huge;
}

/* Returns 0, and then it has memory; or an errno. */
static int make_part(const struct step *s, uint64_t start, struct part *ret)
{
	uint64_t n = s->end - start < PART_SIZE ? s->end - start : PART_SIZE;
	int r;

	ret->huge = host_collapse(s, start, n & ~(HUGE_SIZE - 1));
	do
		r = fallocate(s->fd, 0, (off_t)start, (off_t)n);
	while (r < 0 && errno == EINTR);
	return r < 0 ? -errno : 0;
}

/* On each thread. Whoever takes a part makes it, so that those that were taken are all there in the end, or have failed. */
static void make_parts(void *arg)
{
	struct step *s = arg;
	const unsigned n = n_parts(s);
	int r;

	do {
		unsigned i = atomic_fetch_add(&s->next, 1);

		if (i >= n)
			return;
		r = s->parts[i].r = make_part(s, s->start + i * PART_SIZE, &s->parts[i]);
	} while (r == 0 && num_now_ns() < s->deadline_ns);
}

/* Counts the parts up to the first that failed, if one did. */
static int take_parts(struct backend_progress *progress, const struct step *s)
{
	for (unsigned i = 0; i < atomic_load(&s->next) && progress->done < s->end; i++) {
		uint64_t left = s->end - progress->done, n = left < PART_SIZE ? left : PART_SIZE;

		if (s->parts[i].r < 0) {
			progress->missing = n;
			return s->parts[i].r == -ENOSPC ? -ENOMEM : s->parts[i].r;
		}
		progress->done += n;
		progress->huge += s->parts[i].huge;
	}
	return 0;
}

static int host_provide(struct backend_memory *m)
{
	struct backend_progress *progress = &m->progress;
	struct step step = {.fd = m->fd,
			    .policy = numa_file_policy(m->fd),
			    .start = progress->done,
			    .deadline_ns = num_now_ns() + STEP_NS};
	int r;

	if (progress->done == m->size)
		return JOB_DONE;
	r = host_find_room(m, &step.policy);
	if (r < 0)
		return r;
	step.end = progress->allowed - step.start < STEP_SIZE ? progress->allowed
							      : step.start + STEP_SIZE;
	crew_begin(&m->server->crew, n_parts(&step) - 1, make_parts, &step);
	make_parts(&step);
	crew_end(&m->server->crew);
	r = take_parts(progress, &step);
	if (r < 0)
		return r;
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

/* Parts of the last step may have memory though parts before them have none. */
static uint64_t find_done(const struct stat *st)
{
	const uint64_t size = (uint64_t)st->st_size, allocated = (uint64_t)st->st_blocks * 512;

	if (allocated >= size)
		return size;
	return allocated < STEP_SIZE ? 0 : (allocated - STEP_SIZE) & ~(PART_SIZE - 1);
}

static int host_describe(int fd, uint64_t *ret_size, uint64_t *ret_done, bool *ret_sealed)
{
	int seals = fcntl(fd, F_GET_SEALS);
	struct stat st;

	if (seals < 0 || fstat(fd, &st) < 0)
		return -errno;
	if (!(seals & F_SEAL_SHRINK) || !(seals & F_SEAL_GROW))
		return -EBADF;
	*ret_size = (uint64_t)st.st_size;
	*ret_done = find_done(&st);
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

#include "ipc/base/mapping.h"

#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ipc/base/num.h"

#define HUGE_SIZE (2 * MIB)

/* End of the mapping that was made last, and may be unmapped since: a hint, for any thread. 0: there was none yet. */
static _Atomic uintptr_t last_end;

int mapping_new_plain(int fd, uint64_t size, void **ret)
{
	void *mapped = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);

	/* Before Linux 6.14, of a sealed file that is open for writing. Its bytes never change: a private mapping has the same. */
	if (mapped == MAP_FAILED && errno == EPERM)
		mapped = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (mapped == MAP_FAILED)
		return -errno;
	*ret = mapped;
	return 0;
}

/* The first address of the area that has the place of `offset` in a huge page. */
static char *congruent(char *area, uint64_t offset)
{
	return area + ((offset - (uintptr_t)area) & (HUGE_SIZE - 1));
}

/*
 * Maps it where the mapping was that was made last, if that is free again: to reserve more than is needed, and to cut off what
 * is too much, takes three calls more. False: something else is there.
 */
static bool map_again(int fd, uint64_t offset, uint64_t size, int prot, void **ret)
{
	uintptr_t end = atomic_load_explicit(&last_end, memory_order_relaxed), place = end - size;
	void *mapped;

	if (size + HUGE_SIZE > end) /* there was none yet, or too small a place */
		return false;
	place -= (place - offset) & (HUGE_SIZE - 1);
	mapped = mmap((void *)place, size, prot, MAP_SHARED | MAP_FIXED_NOREPLACE, fd,
		      (off_t)offset);
	if (mapped == MAP_FAILED)
		return false;
	if (mapped != (void *)place) { /* before Linux 4.17 */
		(void)munmap(mapped, size);
		return false;
	}
	*ret = mapped;
	return true;
}

int mapping_new_part(int fd, uint64_t offset, uint64_t size, int prot, void *at, void **ret)
{
	int flags = MAP_SHARED | (at ? MAP_FIXED : 0);
	uint64_t mapped_size;
	char *area, *p;
	void *mapped;

	if (at || size < HUGE_SIZE) {
		mapped = mmap(at, size, prot, flags, fd, (off_t)offset);
		if (mapped == MAP_FAILED)
			return -errno;
		*ret = mapped;
		return 0;
	}
	if (!num_align_up(size, (uint64_t)sysconf(_SC_PAGESIZE), &mapped_size))
		return -EOVERFLOW;
	if (map_again(fd, offset, mapped_size, prot, ret))
		return 0;
	area = mmap(NULL, mapped_size + HUGE_SIZE, PROT_NONE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (area == MAP_FAILED)
		return -errno;
	p = congruent(area, offset);
	mapped = mmap(p, size, prot, MAP_SHARED | MAP_FIXED, fd, (off_t)offset);
	if (mapped == MAP_FAILED) {
		int r = -errno;

		(void)munmap(area, mapped_size + HUGE_SIZE);
		return r;
	}
	if (p > area)
		(void)munmap(area, (size_t)(p - area));
	(void)munmap(p + mapped_size, (size_t)(area + HUGE_SIZE - p));
	atomic_store_explicit(&last_end, (uintptr_t)p + mapped_size, memory_order_relaxed);
	*ret = p;
	return 0;
}

int mapping_new(int fd, uint64_t size, int prot, void *at, void **ret)
{
	return mapping_new_part(fd, 0, size, prot, at, ret);
}

void mapping_free(void *p, uint64_t size)
{
	if (p)
		(void)munmap(p, size);
}

/*
 * One byte of each 2 MiB is touched and the range collapsed: the fastest way to huge pages of a memfd
 * where shmem_enabled is never, the kernel's default.
 */
#include "tests/bench/slab.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/bench/stopwatch.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

void *slab_new(uint64_t size)
{
	int fd = memfd_create("bench-slab", MFD_CLOEXEC);
	char *area, *p;

	if (fd < 0 || ftruncate(fd, (off_t)size) < 0)
		stopwatch_fail("no memfd: %s", strerror(errno));
	area = mmap(NULL, size + SLAB_HUGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (area == MAP_FAILED)
		stopwatch_fail("no room: %s", strerror(errno));
	p = (char *)(((uintptr_t)area + SLAB_HUGE - 1) & ~(uintptr_t)(SLAB_HUGE - 1));
	if (mmap(p, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
		stopwatch_fail("no mapping: %s", strerror(errno));
	(void)close(
		fd); /* the mapping keeps the memory; what is left of `area` ends with the program */
	return p;
}

void slab_free(void *slab, uint64_t size)
{
	(void)munmap(slab, size);
}

uint64_t slab_provide(void *at, uint64_t size)
{
	uint64_t done = 0, huge = 0;

	for (; done + SLAB_HUGE <= size; done += SLAB_HUGE) {
		volatile char *p = (char *)at + done;

		*p = 0; /* a range without any page is EINVAL */
		if (madvise((char *)at + done, SLAB_HUGE, MADV_COLLAPSE) == 0)
			huge += SLAB_HUGE;
	}
	for (; done < size; done += SLAB_PAGE)
		((volatile char *)at)[done] = 0;
	return huge;
}

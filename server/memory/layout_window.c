#include "server/memory/layout_window.h"

#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

/* Blocks are those of addresses: a fault makes pages around it resident, or a huge one, and none beyond its block. */
static uintptr_t block_number(const void *p)
{
	return (uintptr_t)p / LAYOUT_BLOCK_SIZE;
}

static unsigned block_of(const struct layout_window *w, const void *p)
{
	return (unsigned)(block_number(p) - block_number(w->image));
}

int layout_window_map(struct layout_window *w, const void *owner, int fd, size_t size)
{
	void *image;

	if (w->owner == owner)
		return 0;
	layout_window_unmap(w, w->owner);
	assert(size > 0 && size <= LAYOUT_SIZE_MAX);
	image = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
	if (image == MAP_FAILED)
		return -errno;
	*w = (struct layout_window){.owner = owner, .image = image, .size = size, .fd = fd};
	return 1;
}

void layout_window_unmap(struct layout_window *w, const void *owner)
{
	if (!owner || w->owner != owner)
		return;
	(void)munmap((void *)w->image, w->size);
	w->owner = NULL;
	w->image = NULL;
	w->fd = -1;
}

/* The pages stay in the memfd. It may fail for memory that does not count, such as that of hugetlbfs. */
static void block_drop(struct layout_window *w, unsigned block)
{
	uintptr_t start = (block_number(w->image) + block) * LAYOUT_BLOCK_SIZE;
	uintptr_t end = start + LAYOUT_BLOCK_SIZE;
	uintptr_t image_start = (uintptr_t)w->image, image_end = image_start + w->size;

	if (start < image_start)
		start = image_start;
	if (end > image_end)
		end = image_end;
	(void)madvise((void *)start, end - start, MADV_DONTNEED);
	w->is_resident[block] = false;
}

static void block_take(struct layout_window *w, unsigned block)
{
	if (w->n_blocks < LAYOUT_WINDOW_BLOCKS) {
		w->blocks[w->n_blocks++] = (uint16_t)block;
	} else {
		block_drop(w, w->blocks[w->oldest]);
		w->blocks[w->oldest] = (uint16_t)block;
		w->oldest = (w->oldest + 1) % LAYOUT_WINDOW_BLOCKS;
	}
	w->is_resident[block] = true;
}

bool layout_window_touch(void *arg, const void *p, size_t size)
{
	struct layout_window *w = arg;
	unsigned last = block_of(w, size ? (const char *)p + size - 1 : p);
	bool took_some = false;

	for (unsigned block = block_of(w, p); block <= last; block++) {
		if (w->is_resident[block])
			continue;
		block_take(w, block);
		took_some = true;
	}
	return took_some;
}

bool layout_window_copy(void *arg, const void *p, size_t size, void *ret)
{
	const struct layout_window *w = arg;

	return pread(w->fd, ret, size, (const char *)p - w->image) == (ssize_t)size;
}

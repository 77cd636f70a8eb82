/* All tensors share the bytes of the first one, so that a layout of any size belongs to data of any size. */
#include "tests/bench/tenants/hostile_layout.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

#include "ipc/base/fd.h"
#include "ipc/dtype.h"
#include "ipc/layout.h"
#include "tests/bench/stopwatch.h"

#define BYTES_PER_TENSOR 256 /* name included */
#define ALIGNMENT 64

struct sections {
	struct layout_header *header;
	struct layout_tensor *tensors;
	uint64_t *dims;
	uint32_t *buckets;
	char *strings;
};

static struct sections sections_of(void *image, const struct layout_header *h)
{
	struct sections s = {.header = image};

	s.tensors = (void *)(s.header + 1);
	s.dims = (void *)(s.tensors + h->n_tensors);
	s.buckets = (void *)(s.dims + h->n_dims);
	s.strings = (void *)(s.buckets + h->n_buckets);
	*s.header = *h;
	return s;
}

static void write_name(char *name, uint32_t size, uint32_t index)
{
	memset(name, '0', size);
	while (index > 0) {
		name[--size] = (char)('0' + index % 10);
		index /= 10;
	}
}

static void write_tensor(const struct sections *s, uint32_t index, uint32_t name_size)
{
	const struct layout_header *h = s->header;
	uint64_t name = (uint64_t)index * (name_size + 1);
	uint32_t bucket;

	write_name(s->strings + name, name_size, index);
	s->tensors[index] = (struct layout_tensor){
		.n_bytes = s->dims[0],
		.name = name,
		.name_size = name_size,
		.unit = LAYOUT_NONE,
		.tied_to = index > 0 ? 0 : LAYOUT_NONE,
		.dtype = DTYPE_U8,
		.role = LAYOUT_PARAM,
		.n_dims = 1,
	};
	bucket = layout_bucket(s->strings + name, name_size, h->n_buckets);
	while (s->buckets[bucket] != LAYOUT_NONE)
		bucket = (bucket + 1) & (h->n_buckets - 1);
	s->buckets[bucket] = index;
}

int hostile_layout_new(uint64_t size, uint64_t data_size, bool broken)
{
	struct layout_header h = {.magic = LAYOUT_MAGIC,
				  .abi = LAYOUT_ABI,
				  .data_size = (data_size + ALIGNMENT - 1) &
					       ~(uint64_t)(ALIGNMENT - 1),
				  .alignment = ALIGNMENT,
				  .n_tensors = 1,
				  .n_dims = 1};
	uint32_t name_size = BYTES_PER_TENSOR - sizeof(struct layout_tensor) -
			     2 * sizeof(uint32_t) - 1;
	struct sections s;
	void *image;
	int fd;

	while (2 * h.n_tensors * (uint64_t)BYTES_PER_TENSOR <= size)
		h.n_tensors *= 2;
	h.n_buckets = 2 * h.n_tensors;
	h.strings_size = (uint64_t)h.n_tensors * (name_size + 1);
	if (broken)
		h.data_size += ALIGNMENT;
	if (!layout_image_size(&h, &h.total_size) ||
	    fd_memfd("hostile-layout", h.total_size, &fd) < 0)
		stopwatch_fail("no layout of %llu bytes", (unsigned long long)size);
	image = mmap(NULL, h.total_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (image == MAP_FAILED)
		stopwatch_fail("no layout: %s", strerror(errno));
	s = sections_of(image, &h);
	s.dims[0] = data_size;
	memset(s.buckets, 0xff, h.n_buckets * sizeof(*s.buckets));
	for (uint32_t i = 0; i < h.n_tensors; i++)
		write_tensor(&s, i, name_size);
	layout_hash(image, h.total_size, s.header->hash);
	(void)munmap(image, h.total_size);
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW) < 0)
		stopwatch_fail("no sealed layout: %s", strerror(errno));
	return fd;
}

#include "server/cuda/allocation.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "ipc/base/fd.h"
#include "ipc/base/num.h"

static struct cu_allocation properties(const struct gpu *gpu)
{
	return (struct cu_allocation){
		.type = CU_ALLOCATION_PINNED,
		.handle_types = CU_HANDLE_POSIX_FD,
		.location = {.type = CU_LOCATION_DEVICE, .id = gpu->device},
	};
}

uint64_t allocation_granularity(const struct gpus *g, const struct gpu *gpu)
{
	struct cu_allocation a = properties(gpu);
	size_t size = 0;

	return g->driver->mem_granularity(&size, &a, CU_GRANULARITY_MINIMUM) == CU_OK ? size : 0;
}

/*
 * Asks for all that the GPU claims to support. A driver may claim it and refuse: fabric handles
 * need a daemon (IMEX), registration with network cards a module of the kernel; memory without them
 * is enough for most.
 */
static cu_result handle_create(const struct gpus *g, const struct gpu *gpu, size_t size,
			       cu_handle *ret)
{
	bool fabric = gpu_has(g, gpu, CU_ATTRIBUTE_FABRIC);
	bool rdma = gpu_has(g, gpu, CU_ATTRIBUTE_RDMA_WITH_VMM);
	cu_result r;

	for (;;) {
		struct cu_allocation a = properties(gpu);

		if (fabric)
			a.handle_types |= CU_HANDLE_FABRIC;
		a.flags.rdma_capable = rdma;
		r = g->driver->mem_create(ret, size, &a, 0);
		if (r == CU_OK || r == CU_OUT_OF_MEMORY || (!fabric && !rdma))
			return r;
		if (fabric)
			fabric = false;
		else
			rdma = false;
	}
}

static cu_result allocation_fill(const struct gpus *g, const struct gpu *gpu, cu_ptr at, size_t size)
{
	struct cu_access access = {
		.location = {.type = CU_LOCATION_DEVICE, .id = gpu->device},
		.flags = CU_ACCESS_READWRITE,
	};
	cu_result r = g->driver->mem_set_access(at, size, &access, 1);

	if (r == CU_OK)
		r = g->driver->memset8(at, 0, size);
	return r == CU_OK ? g->driver->ctx_synchronize() : r;
}

/* Maps it for as long as it takes to write zeros, and not longer. */
static cu_result handle_scrub(const struct gpus *g, const struct gpu *gpu, cu_handle h, size_t size)
{
	cu_ptr at = 0;
	cu_result r = g->driver->mem_reserve(&at, size, 0, 0, 0), undone;

	if (r != CU_OK)
		return r;
	r = g->driver->mem_map(at, size, 0, h, 0);
	if (r == CU_OK) {
		r = allocation_fill(g, gpu, at, size);
		undone = g->driver->mem_unmap(at, size);
		r = r == CU_OK ? undone : r;
	}
	undone = g->driver->mem_unreserve(at, size);
	return r == CU_OK ? undone : r;
}

/* 0 or a negative errno; the handle is ours no more either way. */
static int allocation_create(const struct gpus *g, const struct gpu *gpu, size_t size, char *why,
			     int *ret_fd)
{
	const char *what = "it provides no memory";
	cu_handle h;
	cu_result r = handle_create(g, gpu, size, &h), released;
	int fd = -1;

	if (r != CU_OK)
		return gpu_explain(g, what, r, why);
	r = handle_scrub(g, gpu, h, size);
	if (r == CU_OK) {
		what = "its memory cannot be shared";
		r = g->driver->mem_export(&fd, h, CU_HANDLE_POSIX_FD, 0);
	} else {
		what = "its memory cannot be filled with zeros";
	}
	released = g->driver->mem_release(h);
	if (r == CU_OK && released != CU_OK) {
		(void)fd_close(fd);
		what = "its memory cannot be released";
		r = released;
	}
	if (r != CU_OK)
		return gpu_explain(g, what, r, why);
	*ret_fd = fd;
	return 0;
}

/* As nvidia-smi sees it: other programs may take memory between this and the allocation, which then fails. */
int allocation_admit(struct gpus *g, uint64_t granularity, const struct allocator_request *q,
		     struct allocator_reply *ret)
{
	uint64_t wanted;
	int r;

	if (!num_is_power_of_two(granularity) || !num_align_up(q->size, granularity, &ret->needed) ||
	    __builtin_add_overflow(ret->needed, q->reserve, &wanted)) {
		(void)snprintf(ret->why, sizeof(ret->why), "no GPU has that much memory");
		return -EINVAL;
	}
	r = gpu_memory(g, &ret->free, &ret->total, ret->why);
	return r == 0 && ret->free < wanted ? -ENOMEM : r;
}

void allocation_make(struct gpus *g, struct gpu *gpu, const struct allocator_request *q,
		     struct allocator_reply *ret, int *ret_fd)
{
	memcpy(ret->name, gpu->name, sizeof(ret->name));
	ret->error = gpu_enter(g, gpu, ret->why);
	if (ret->error < 0)
		return;
	ret->error = allocation_admit(g, allocation_granularity(g, gpu), q, ret);
	if (ret->error == 0)
		ret->error = allocation_create(g, gpu, ret->needed, ret->why, ret_fd);
	gpu_leave(g);
}

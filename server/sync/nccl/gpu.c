#include "server/sync/nccl/gpu.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "ipc/device.h"

int gpu_fail(const struct gpu *g, cu_result result, const char *what, char ret_why[GPU_WHY_SIZE])
{
	char said[CUDA_WHY_SIZE];

	cuda_driver_explain(g->driver, result, said);
	(void)snprintf(ret_why, GPU_WHY_SIZE, "%s: %s", what, said);
	return cuda_driver_errno(result);
}

static int gpu_find_named(struct gpu *g, const char *name, char ret_why[GPU_WHY_SIZE])
{
	struct device wanted;
	struct cu_uuid uuid;
	int n;
	cu_result result;

	if (device_parse(name, &wanted) < 0 || !wanted.is_cuda || wanted.ordinal >= 0) {
		(void)snprintf(ret_why, GPU_WHY_SIZE, "the order is wrong: '%s' names no GPU", name);
		return -EBADMSG;
	}
	result = g->driver->device_count(&n);
	if (result)
		return gpu_fail(g, result, "cannot count the GPUs", ret_why);
	for (g->device = 0; g->device < n; g->device++)
		if (g->driver->device_uuid(&uuid, g->device) == CU_OK &&
		    !memcmp(uuid.bytes, wanted.uuid, sizeof(uuid.bytes)))
			return 0;
	(void)snprintf(ret_why, GPU_WHY_SIZE, "the memory is on %s, and this process sees %d GPU%s",
		       name, n, n == 1 ? "" : "s");
	return -ENODEV;
}

static int gpu_enter_context(struct gpu *g, char ret_why[GPU_WHY_SIZE])
{
	const struct cuda_driver *d = g->driver;
	cu_context context;
	cu_result result = d->primary_ctx_retain(&context, g->device);

	if (result == CU_OK)
		result = d->ctx_push(context);
	if (result == CU_OK)
		result = d->stream_create(&g->stream, CU_STREAM_NON_BLOCKING);
	if (result == CU_OK)
		result = d->mem_alloc(&g->scratch, GPU_SCRATCH_SIZE);
	if (result)
		return gpu_fail(g, result, "cannot create a context on the GPU", ret_why);
	result = d->mem_host_alloc(&g->pinned, GPU_SCRATCH_SIZE, 0);
	return result ? gpu_fail(g, result, "cannot pin host memory", ret_why) : 0;
}

/* A driver without read-only mappings gets a writable one, which is never written. */
static cu_result set_access(const struct gpu *g, cu_ptr memory, uint64_t map_size, bool is_read_only)
{
	struct cu_access a = {{CU_LOCATION_DEVICE, g->device},
			      is_read_only ? CU_ACCESS_READ : CU_ACCESS_READWRITE};
	cu_result result = g->driver->mem_set_access(memory, map_size, &a, 1);

	if (!is_read_only || (result != CU_NOT_SUPPORTED && result != CU_INVALID_VALUE))
		return result;
	a.flags = CU_ACCESS_READWRITE;
	return g->driver->mem_set_access(memory, map_size, &a, 1);
}

int gpu_map(const struct gpu *g, int fd, uint64_t map_size, bool is_read_only, cu_ptr *ret,
	    char ret_why[GPU_WHY_SIZE])
{
	const struct cuda_driver *d = g->driver;
	cu_handle handle;
	cu_ptr memory;
	cu_result result = d->mem_import(&handle, (void *)(intptr_t)fd, CU_HANDLE_POSIX_FD);

	if (result)
		return gpu_fail(g, result, "the driver cannot import the memory", ret_why);
	result = d->mem_reserve(&memory, map_size, 0, 0, 0);
	if (result == CU_OK)
		result = d->mem_map(memory, map_size, 0, handle, 0);
	if (result == CU_OK)
		result = set_access(g, memory, map_size, is_read_only);
	if (result)
		return gpu_fail(g, result, "the GPU cannot map the memory", ret_why);
	*ret = memory;
	return 0;
}

int gpu_open(struct gpu *g, const char *name, gpu_on_call *on_call, void *userdata,
	     char ret_why[GPU_WHY_SIZE])
{
	char why[CUDA_WHY_SIZE];
	int r;

	*g = (struct gpu){0};
	on_call(userdata, "the start of the CUDA driver");
	r = cuda_driver_open(&g->driver, why);
	if (r < 0) {
		(void)snprintf(ret_why, GPU_WHY_SIZE, "%s", why);
		return r;
	}
	r = gpu_find_named(g, name, ret_why);
	on_call(userdata, "the context on the GPU");
	return r == 0 ? gpu_enter_context(g, ret_why) : r;
}

#include "server/cuda/gpu.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "ipc/device.h"
#include "server/cuda/allocation.h"

int gpu_explain(const struct gpus *g, const char *what, cu_result result,
		char ret_why[CUDA_WHY_SIZE])
{
	char said[CUDA_WHY_SIZE];

	cuda_driver_explain(g->driver, result, said);
	(void)snprintf(ret_why, CUDA_WHY_SIZE, "%s: %.200s", what, said);
	return cuda_driver_errno(result);
}

static int open_gpu(struct gpus *g, int ordinal, struct gpu *ret, char ret_why[CUDA_WHY_SIZE])
{
	struct cu_uuid uuid = {0};
	cu_result r = g->driver->device_get(&ret->device, ordinal);

	if (r == CU_OK)
		r = g->driver->device_uuid(&uuid, ret->device);
	if (r == CU_OK)
		r = g->driver->device_name(ret->name, sizeof(ret->name) - 1, ret->device);
	if (r != CU_OK)
		return gpu_explain(g, "a GPU cannot be identified", r, ret_why);
	memcpy(ret->uuid, uuid.bytes, sizeof(ret->uuid));
	/* The driver has no attribute for it: "NVIDIA A100-SXM4-40GB MIG 1g.5gb". */
	ret->is_mig = strstr(ret->name, " MIG ") != NULL;
	return 0;
}

int gpus_open(struct gpus *g, char ret_why[CUDA_WHY_SIZE])
{
	cu_result result;
	int n = 0, r;

	if (g->n > 0)
		return 0;
	r = cuda_driver_open(&g->driver, ret_why);
	if (r < 0)
		return r;
	result = g->driver->device_count(&n);
	if (result != CU_OK)
		return gpu_explain(g, "GPUs cannot be counted", result, ret_why);
	for (int i = 0; r == 0 && i < n && i < GPUS_MAX; i++)
		r = open_gpu(g, i, &g->gpus[i], ret_why);
	if (r == 0)
		g->n = n < GPUS_MAX ? (unsigned)n : GPUS_MAX;
	return r;
}

struct gpu *gpus_find(struct gpus *g, const uint8_t uuid[WIRE_UUID_SIZE])
{
	for (unsigned i = 0; i < g->n; i++)
		if (!memcmp(g->gpus[i].uuid, uuid, WIRE_UUID_SIZE))
			return &g->gpus[i];
	return NULL;
}

int gpu_enter(struct gpus *g, struct gpu *gpu, char ret_why[CUDA_WHY_SIZE])
{
	cu_result r = gpu->context ? CU_OK
				   : g->driver->primary_ctx_retain(&gpu->context, gpu->device);

	if (r == CU_OK)
		r = g->driver->ctx_push(gpu->context);
	return r == CU_OK ? 0 : gpu_explain(g, "no context can be created on it", r, ret_why);
}

void gpu_leave(struct gpus *g)
{
	cu_context left;

	(void)g->driver->ctx_pop(&left); /* there is one: we pushed it */
}

int gpu_memory(struct gpus *g, uint64_t *ret_free, uint64_t *ret_total, char ret_why[CUDA_WHY_SIZE])
{
	size_t free = 0, total = 0;
	cu_result r = g->driver->mem_info(&free, &total);

	if (r != CU_OK)
		return gpu_explain(g, "its free memory is unknown", r, ret_why);
	*ret_free = free;
	*ret_total = total;
	return 0;
}

static int attribute(const struct gpus *g, const struct gpu *gpu, int which)
{
	int value = 0;

	/* GPUs lack the attributes that an older driver lacks. */
	return g->driver->device_attribute(&value, which, gpu->device) == CU_OK ? value : 0;
}

bool gpu_has(const struct gpus *g, const struct gpu *gpu, int which)
{
	return attribute(g, gpu, which) != 0;
}

void gpu_describe(struct gpus *g, struct gpu *gpu, struct wire_device_record *ret)
{
	char why[CUDA_WHY_SIZE] = "";
	int driver = 0;

	*ret = (struct wire_device_record){
		.index = (uint32_t)(gpu - g->gpus),
		.flags = WIRE_DEVICE_IPC | (gpu->is_mig ? WIRE_DEVICE_MIG : 0) |
			 (gpu_has(g, gpu, CU_ATTRIBUTE_FABRIC) ? WIRE_DEVICE_FABRIC : 0) |
			 (gpu_has(g, gpu, CU_ATTRIBUTE_RDMA_WITH_VMM) ? WIRE_DEVICE_RDMA : 0),
		.capability = (uint32_t)(attribute(g, gpu, CU_ATTRIBUTE_CAPABILITY_MAJOR) * 10 +
					 attribute(g, gpu, CU_ATTRIBUTE_CAPABILITY_MINOR)),
	};
	device_format(gpu->uuid, gpu->is_mig, ret->device);
	memcpy(ret->name, gpu->name, sizeof(ret->name));
	if (g->driver->driver_version(&driver) == CU_OK)
		ret->driver = (uint32_t)driver;
	if (gpu_has(g, gpu, CU_ATTRIBUTE_VMM) && gpu_has(g, gpu, CU_ATTRIBUTE_POSIX_FD))
		ret->flags |= WIRE_DEVICE_CUDA;
	else
		(void)snprintf(why, sizeof(why),
			       "it cannot share memory by descriptors (cuMemCreate)");
	if (gpu_enter(g, gpu, why) == 0) {
		if (gpu_memory(g, &ret->free, &ret->total, why) == 0)
			ret->granularity = allocation_granularity(g, gpu);
		gpu_leave(g);
	}
	memcpy(ret->why, why, sizeof(ret->why));
}

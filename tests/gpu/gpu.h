/*
 * The GPU as the agent uses it: its primary context, the kernels, and two streams, one of which may be held up
 * by a kernel that takes its time.
 */
#pragma once

#include <stdint.h>

#include "ipc/cuda/cuda_driver.h"

struct gpu {
	const struct cuda_driver *cuda;
	int ordinal;
	cu_context context;
	cu_stream stream, busy_stream;
	cu_function fill, sum, spin, poke;
	cu_ptr out; /* 64 bits */
	uint64_t init_ns, context_ns, module_ns; /* times of its parts */
};

/* 0 or a result of the driver; -1: there is no driver, and `ret_why` has the reason. */
int gpu_open(struct gpu *gpu, int ordinal, char ret_why[CUDA_WHY_SIZE]);

/* Bytes in whole words. fill and spin are queued only. */
cu_result gpu_fill(struct gpu *gpu, cu_ptr p, uint64_t size, uint32_t seed);
cu_result gpu_sum(struct gpu *gpu, cu_ptr p, uint64_t size, uint64_t *ret);
cu_result gpu_spin(struct gpu *gpu, cu_ptr p, uint64_t size, uint64_t ns);
cu_result gpu_poke(struct gpu *gpu, cu_ptr p, uint32_t value);

/* The launch of gpu_sum() alone, into a stream: for graphs. */
cu_result gpu_queue_sum(struct gpu *gpu, cu_ptr p, uint64_t size, cu_stream s);

/* Bytes per second: from pinned host memory, and between two places on the GPU, counting both. */
cu_result gpu_copy_rate(struct gpu *gpu, uint64_t size, double *ret_from_host,
			double *ret_on_device);

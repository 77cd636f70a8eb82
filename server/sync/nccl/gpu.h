/*
 * The GPU
 *
 * The memory that was handed to us, mapped, on the GPU that has it; and what NCCL works with there: the primary
 * context, current in the one thread that calls, a stream, and a few bytes of our own on the GPU and in host memory.
 * Nothing of it is ever given back but by the end of the process.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ipc/cuda/cuda_driver.h"

#define GPU_WHY_SIZE 512
#define GPU_SCRATCH_SIZE 4096

struct gpu {
	const struct cuda_driver *driver;
	cu_device device;
	cu_stream stream;
	cu_ptr memory;
	cu_ptr scratch; /* GPU_SCRATCH_SIZE bytes */
	void *pinned; /* as many bytes of host memory, for copies that do not block */
};

/* Says what the thread is about to do with a driver that may hang. */
typedef void gpu_says(void *userdata, const char *what);

/*
 * Maps `map_size` bytes of the allocation behind `fd`, which is on the GPU of this name, "cuda:GPU-...". What is only
 * read is mapped so, where the driver can. -errno with a sentence.
 */
int gpu_open(struct gpu *g, const char *name, int fd, uint64_t map_size, bool is_read_only,
	     gpu_says *says, void *userdata, char ret_why[GPU_WHY_SIZE]);

/* "what: CUDA_ERROR_...". Returns -errno. */
int gpu_fail(const struct gpu *g, cu_result result, const char *what, char ret_why[GPU_WHY_SIZE]);

/*
 * The GPU
 *
 * The memory from the agent, mapped on its GPU, and the objects that NCCL needs there: the primary
 * context, current in the one thread that makes calls, a stream, and a little memory of our own on the
 * GPU and in the host. Only the end of the process releases them.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "ipc/cuda/cuda_driver.h"

#define GPU_WHY_SIZE 512
#define GPU_SCRATCH_SIZE ((size_t)1 << 21)

struct gpu {
	const struct cuda_driver *driver;
	cu_device device;
	cu_stream stream;
	cu_ptr scratch; /* GPU_SCRATCH_SIZE bytes */
	void *pinned; /* as many bytes of host memory, for copies that do not block */
};

/* Called before each call of a driver that may hang, with its purpose. */
typedef void gpu_on_call(void *userdata, const char *what);

/* Enters the GPU of this name, "cuda:GPU-...". -errno with a sentence. */
int gpu_open(struct gpu *g, const char *name, gpu_on_call *on_call, void *userdata,
	     char ret_why[GPU_WHY_SIZE]);
/*
 * Maps `map_size` bytes of the allocation behind `fd`. Memory that is only read is mapped
 * read-only, if the driver can. -errno with a sentence.
 */
int gpu_map(const struct gpu *g, int fd, uint64_t map_size, bool is_read_only, cu_ptr *ret,
	    char ret_why[GPU_WHY_SIZE]);

/* Writes "what: CUDA_ERROR_...". Returns -errno. */
int gpu_fail(const struct gpu *g, cu_result result, const char *what, char ret_why[GPU_WHY_SIZE]);

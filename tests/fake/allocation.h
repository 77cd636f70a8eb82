/*
 * Allocations of GPU memory
 *
 * Each is a file in FAKE_CUDA_STATE/memory, "KIND-GPU-PID-NUMBER", which stands for memory of the
 * GPU as long as any process has it open or mapped: a process that counts asks the kernel for a
 * lease on it, and removes it where it gets one. Behind the bytes is a page that describes them.
 *
 * Other processes do not receive the file but a socket with the file in its queue: like a handle
 * of the real driver it can be kept, passed on and imported, and neither mapped nor read.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "tests/fake/call.h"

enum allocation_kind {
	ALLOCATION_VMM = 1, /* cuMemCreate */
	ALLOCATION_LINEAR, /* cuMemAlloc */
	ALLOCATION_CONTEXT, /* the cost of a context; has no bytes */
};

#define ALLOCATION_NAME_SIZE 48

/* One process's hold of an allocation: counted, because handle, mappings and copies each have one. */
struct allocation {
	int refs; /* atomic */
	enum allocation_kind kind;
	int gpu;
	uint64_t size;
	int handle_types;
	bool rdma_capable;
	char *bytes; /* mapping of the stand-in itself, independent of others */
	char name[ALLOCATION_NAME_SIZE];
};

/* Fresh bytes are not zero. CUDA_ERROR_OUT_OF_MEMORY where the GPU has less. */
cu_result allocation_new(enum allocation_kind kind, int gpu, uint64_t size, int handle_types,
			 bool rdma_capable, struct allocation **ret);

struct allocation *allocation_ref(struct allocation *a);
void allocation_unref(struct allocation *a);

/* A descriptor for other processes, and what it leads to: CUDA_ERROR_INVALID_VALUE if it is no such thing. */
cu_result allocation_export(const struct allocation *a, int *ret_fd);
cu_result allocation_import(int fd, struct allocation **ret);

/* Finds it by name, as long as the process that made it lives and has not freed it. */
cu_result allocation_open(const char *name, struct allocation **ret);

/* Bytes of a GPU that are taken, by all processes. */
uint64_t allocation_used(int gpu);

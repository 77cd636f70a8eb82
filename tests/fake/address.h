/*
 * Addresses of GPU memory
 *
 * Ranges of this process's address space that are reserved, and what is mapped there. The processor cannot
 * touch them, as on a real machine: the stand-in reaches the bytes elsewhere. With FAKE_CUDA_TOUCHABLE=1 they
 * can be read, and written where the GPU may write.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "tests/fake/allocation.h"
#include "tests/fake/call.h"

#define ADDRESS_ACCESS_NONE 0
#define ADDRESS_ACCESS_READ 1
#define ADDRESS_ACCESS_WRITE 3

/* VMM: reservations, and allocations mapped whole into them. */
cu_result address_reserve(uint64_t size, uint64_t alignment, cu_ptr at, cu_ptr *ret);
cu_result address_unreserve(cu_ptr p, uint64_t size);
cu_result address_map(cu_ptr p, uint64_t size, struct allocation *a);
cu_result address_unmap(cu_ptr p, uint64_t size);
cu_result address_set_access(cu_ptr p, uint64_t size, int gpu, int access);

/* Linear memory: reserved, mapped and accessible at once. The mapping takes over the caller's hold of `a`. */
cu_result address_place(struct allocation *a, bool is_import, cu_ptr *ret);
cu_result address_remove(cu_ptr base, bool is_import);

/* The address of an import of the allocation with this name, opened once more; or 0. */
cu_ptr address_open_again(const char *name);

/* The linear allocation, made here, that holds this address, and how it is called; -1. */
int address_name(cu_ptr p, char ret[ALLOCATION_NAME_SIZE]);

/* True when this process made the allocation with this name. */
bool address_is_made_here(const char *name);

/* Unmaps all linear memory of a GPU, after its context. */
void address_forget(int gpu);

/* Linear memory of other GPUs that kernels on this one may use. */
void address_enable_peer(int gpu, int peer);

enum address_use {
	ADDRESS_COPY_FROM,
	ADDRESS_COPY_TO, /* the copy engine reaches linear memory of any GPU */
	ADDRESS_KERNEL_READ,
	ADDRESS_KERNEL_WRITE,
};

/* True when a GPU may use all of a range in this way. */
bool address_is_usable(cu_ptr p, uint64_t size, int gpu, enum address_use use);

/*
 * The bytes at an address, of which `ret_n`, at most size, can be reached through the result, held by
 * `ret_hold` until allocation_unref(). NULL: a GPU may not use them so.
 */
char *address_hold(cu_ptr p, uint64_t size, int gpu, enum address_use use, uint64_t *ret_n,
		   struct allocation **ret_hold);

/* True for an address of a GPU. */
bool address_is_gpu(const void *p);

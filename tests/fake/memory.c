/*
 * Memory: the calls that make, map and count it
 *
 * Handles are numbers of this process; an allocation lives as long as a handle or a mapping of any process.
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/list.h"
#include "tests/fake/address.h"
#include "tests/fake/allocation.h"
#include "tests/fake/call.h"
#include "tests/fake/context.h"
#include "tests/fake/device.h"
#include "tests/fake/state.h"

#define LOCATION_DEVICE 1
#define TYPE_PINNED 1
#define HANDLE_POSIX_FD 1
#define HANDLE_FABRIC 8

struct location {
	int type, id;
};

struct properties {
	int type, handle_types;
	struct location location;
	void *unused;
	struct {
		unsigned char compression, rdma_capable;
		unsigned short usage;
		unsigned char reserved[4];
	} flags;
};

struct access {
	struct location location;
	int flags;
};

struct handle {
	struct list link; /* handles */
	cu_handle id;
	struct allocation *allocation;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* handles, last_id */
static struct list handles = {&handles, &handles};
static cu_handle last_id = 0x1000;

static cu_result handle_new(struct allocation *a, cu_handle *ret)
{
	struct handle *h = calloc(1, sizeof(*h));

	if (!h)
		return CUDA_ERROR_OUT_OF_MEMORY;
	(void)pthread_mutex_lock(&mutex);
	h->id = ++last_id;
	h->allocation = a;
	list_append(&handles, &h->link);
	*ret = h->id;
	(void)pthread_mutex_unlock(&mutex);
	return CUDA_SUCCESS;
}

/* Its allocation, held for the caller; `ends` takes the handle away. */
static struct allocation *handle_hold(cu_handle id, bool ends)
{
	struct allocation *a = NULL;
	struct handle *h, *tmp;

	(void)pthread_mutex_lock(&mutex);
	list_for_each_safe(h, tmp, &handles, link) {
		if (h->id != id)
			continue;
		a = h->allocation;
		if (ends) {
			list_remove(&h->link);
			free(h);
		} else {
			allocation_ref(a);
		}
	}
	(void)pthread_mutex_unlock(&mutex);
	return a;
}

static cu_result check_properties(const struct properties *p)
{
	int gpu;

	if (!p || p->type != TYPE_PINNED || p->location.type != LOCATION_DEVICE ||
	    (p->handle_types & ~(HANDLE_POSIX_FD | HANDLE_FABRIC)) || p->unused)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_is_valid(p->location.id))
		return CUDA_ERROR_INVALID_DEVICE;
	gpu = device_gpu(p->location.id);
	if (!device_attribute(gpu, DEVICE_ATTRIBUTE_VMM) ||
	    ((p->handle_types & HANDLE_POSIX_FD) &&
	     !device_attribute(gpu, DEVICE_ATTRIBUTE_POSIX_FD)) ||
	    ((p->handle_types & HANDLE_FABRIC) && !device_attribute(gpu, DEVICE_ATTRIBUTE_FABRIC)) ||
	    (p->flags.rdma_capable && !device_attribute(gpu, DEVICE_ATTRIBUTE_RDMA_WITH_VMM)))
		return CUDA_ERROR_NOT_SUPPORTED;
	return CUDA_SUCCESS;
}

CALL(cuMemGetAllocationGranularity, size_t *ret, const struct properties *p, int option)
{
	cu_result r;

	CALL_ENTER(CALL_NEEDS_INIT);
	r = check_properties(p);
	if (!r && (option < 0 || option > 1))
		r = CUDA_ERROR_INVALID_VALUE;
	if (!r)
		*ret = DEVICE_GRANULARITY;
	return r;
}

/* Fabric handles need a channel of the import and export daemon, even if the GPU supports them. */
static bool has_channel(void)
{
	return state_number("FAKE_CUDA_CHANNEL", 0) != 0;
}

CALL(cuMemCreate, cu_handle *ret, size_t size, const struct properties *p, uint64_t flags)
{
	struct allocation *a;
	cu_result r;

	CALL_ENTER(CALL_NEEDS_INIT);
	r = check_properties(p);
	if (!r && (!size || size % DEVICE_GRANULARITY || flags))
		r = CUDA_ERROR_INVALID_VALUE;
	if (!r && (p->handle_types & HANDLE_FABRIC) && !has_channel())
		r = CUDA_ERROR_NOT_PERMITTED;
	if (!r)
		r = allocation_new(ALLOCATION_VMM, device_gpu(p->location.id), size,
				   p->handle_types, p->flags.rdma_capable, &a);
	return r ? r : handle_new(a, ret);
}

CALL(cuMemRelease, cu_handle h)
{
	struct allocation *a;

	CALL_ENTER(CALL_NEEDS_INIT);
	a = handle_hold(h, true);
	allocation_unref(a);
	return a ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CALL(cuMemGetAllocationPropertiesFromHandle, struct properties *ret, cu_handle h)
{
	struct allocation *a;

	CALL_ENTER(CALL_NEEDS_INIT);
	a = handle_hold(h, false);
	if (!a)
		return CUDA_ERROR_INVALID_VALUE;
	*ret = (struct properties){
		.type = TYPE_PINNED,
		.handle_types = a->handle_types,
		.location = {LOCATION_DEVICE, device_of_gpu(a->gpu)},
		.flags = {.rdma_capable = a->rdma_capable},
	};
	allocation_unref(a);
	return CUDA_SUCCESS;
}

CALL(cuMemExportToShareableHandle, void *ret, cu_handle h, int type, uint64_t flags)
{
	struct allocation *a;
	cu_result r = CUDA_ERROR_INVALID_VALUE;

	CALL_ENTER(CALL_NEEDS_INIT);
	a = handle_hold(h, false);
	if (!a)
		return r;
	if (!flags && type == HANDLE_POSIX_FD && (a->handle_types & type))
		r = allocation_export(a, ret);
	allocation_unref(a);
	return r;
}

CALL(cuMemImportFromShareableHandle, cu_handle *ret, void *os_handle, int type)
{
	struct allocation *a;
	cu_result r;

	CALL_ENTER(CALL_NEEDS_INIT);
	if (type != HANDLE_POSIX_FD)
		return CUDA_ERROR_NOT_SUPPORTED;
	r = allocation_import((int)(intptr_t)os_handle, &a);
	if (!r && device_of_gpu(a->gpu) < 0) {
		allocation_unref(a);
		r = CUDA_ERROR_INVALID_DEVICE; /* this process cannot see the GPU */
	}
	return r ? r : handle_new(a, ret);
}

CALL(cuMemAddressReserve, cu_ptr *ret, size_t size, size_t alignment, cu_ptr at, uint64_t flags)
{
	CALL_ENTER(CALL_NEEDS_INIT);
	return flags ? CUDA_ERROR_INVALID_VALUE : address_reserve(size, alignment, at, ret);
}

CALL(cuMemAddressFree, cu_ptr p, size_t size)
{
	CALL_ENTER(CALL_NEEDS_INIT);
	return address_unreserve(p, size);
}

CALL(cuMemMap, cu_ptr p, size_t size, size_t offset, cu_handle h, uint64_t flags)
{
	struct allocation *a;
	cu_result r = CUDA_ERROR_INVALID_VALUE;

	CALL_ENTER(CALL_NEEDS_INIT);
	a = handle_hold(h, false);
	if (!a)
		return r;
	if (!flags && !offset)
		r = address_map(p, size, a);
	allocation_unref(a);
	return r;
}

CALL(cuMemUnmap, cu_ptr p, size_t size)
{
	CALL_ENTER(CALL_NEEDS_INIT);
	return address_unmap(p, size);
}

CALL(cuMemSetAccess, cu_ptr p, size_t size, const struct access *a, size_t n)
{
	CALL_ENTER(CALL_NEEDS_INIT);
	if (!a || !n)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < n; i++) {
		cu_result r = CUDA_ERROR_INVALID_VALUE;

		if (!device_is_valid(a[i].location.id))
			return CUDA_ERROR_INVALID_DEVICE;
		if (a[i].location.type == LOCATION_DEVICE &&
		    (a[i].flags == ADDRESS_ACCESS_NONE || a[i].flags == ADDRESS_ACCESS_READ ||
		     a[i].flags == ADDRESS_ACCESS_WRITE))
			r = address_set_access(p, size, device_gpu(a[i].location.id), a[i].flags);
		if (r)
			return r;
	}
	return CUDA_SUCCESS;
}

CALL(cuMemGetInfo_v2, size_t *ret_free, size_t *ret_total)
{
	uint64_t used;

	CALL_ENTER(CALL_NEEDS_CONTEXT);
	used = allocation_used(context_gpu());
	*ret_total = device_memory();
	*ret_free = used < *ret_total ? *ret_total - used : 0;
	return CUDA_SUCCESS;
}

CALL(cuMemAlloc_v2, cu_ptr *ret, size_t size)
{
	struct allocation *a;
	cu_result r;

	CALL_ENTER(CALL_NEEDS_CONTEXT);
	if (!size)
		return CUDA_ERROR_INVALID_VALUE;
	r = allocation_new(ALLOCATION_LINEAR, context_gpu(), size, 0, false, &a);
	return r ? r : address_place(a, false, ret);
}

CALL(cuMemFree_v2, cu_ptr p)
{
	CALL_ENTER(CALL_NEEDS_CONTEXT);
	(void)context_wait(); /* it waits for all work on the GPU */
	return p ? address_remove(p, false) : CUDA_SUCCESS;
}

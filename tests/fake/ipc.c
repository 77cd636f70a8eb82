/*
 * Handles of the older kind: linear memory by its name
 *
 * They lead to memory as long as the process that made it lives and has not freed it.
 */
#include <string.h>

#include "tests/fake/address.h"
#include "tests/fake/allocation.h"
#include "tests/fake/call.h"
#include "tests/fake/context.h"
#include "tests/fake/device.h"

#define LAZY_PEER_ACCESS 1
#define MAGIC 0x63706965u

struct ipc_handle {
	union {
		struct {
			uint32_t magic;
			char name[ALLOCATION_NAME_SIZE];
		};
		uint8_t bytes[64];
	};
};

CALL(cuIpcGetMemHandle, struct ipc_handle *ret, cu_ptr p)
{
	struct ipc_handle h = {.magic = MAGIC};

	CALL_ENTER(CALL_NEEDS_CONTEXT);
	if (address_name(p, h.name) < 0)
		return CUDA_ERROR_INVALID_VALUE;
	*ret = h;
	return CUDA_SUCCESS;
}

CALL(cuIpcOpenMemHandle_v2, cu_ptr *ret, struct ipc_handle h, unsigned flags)
{
	struct allocation *a;
	cu_result r;

	CALL_ENTER(CALL_NEEDS_CONTEXT);
	if (h.magic != MAGIC || flags != LAZY_PEER_ACCESS || h.name[sizeof(h.name) - 1])
		return CUDA_ERROR_INVALID_VALUE;
	if (address_is_made_here(h.name))
		return CUDA_ERROR_INVALID_CONTEXT;
	r = allocation_open(h.name, &a);
	if (r)
		return r;
	*ret = address_open_again(h.name);
	if (*ret || device_of_gpu(a->gpu) < 0) {
		r = *ret ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
		allocation_unref(a);
		return r;
	}
	return address_place(a, true, ret);
}

CALL(cuIpcCloseMemHandle, cu_ptr p)
{
	CALL_ENTER(CALL_NEEDS_CONTEXT);
	(void)context_wait();
	return address_remove(p, true);
}

CALL(cuIpcOpenMemHandle, cu_ptr *ret, struct ipc_handle h, unsigned flags)
{
	return cuIpcOpenMemHandle_v2(ret, h, flags);
}

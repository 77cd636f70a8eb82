/*
 * The CUDA driver
 *
 * libcuda.so.1 as a table of functions, opened by soname at run time. This file and its .c are the only ones
 * that name its symbols; they are declared here by hand (from the driver API's reference, CUDA 11.4 to 13),
 * so that nothing of CUDA is needed to build. Only programs that may hang or crash with a GPU open it:
 * clients and weightd-cuda, never weightd.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef int cu_result; /* 0: done */
typedef int cu_device; /* an ordinal of this process */
typedef uint64_t cu_ptr; /* an address of a GPU */
typedef uint64_t cu_handle; /* handle of an allocation, independent of its mappings */
typedef struct cu_context *cu_context;
typedef struct cu_stream *cu_stream;
typedef struct cu_event *cu_event;
typedef struct cu_module *cu_module;
typedef struct cu_function *cu_function;

/* Results with a meaning here; the others are reported by name. */
#define CU_OK 0
#define CU_INVALID_VALUE 1
#define CU_OUT_OF_MEMORY 2
#define CU_NO_DEVICE 100
#define CU_INVALID_DEVICE 101
#define CU_INVALID_CONTEXT 201
#define CU_PEER_ACCESS_UNSUPPORTED 217
#define CU_INVALID_HANDLE 400
#define CU_NOT_READY 600
#define CU_PEER_ACCESS_ALREADY_ENABLED 704
#define CU_NOT_PERMITTED 800
#define CU_NOT_SUPPORTED 801

/* Attributes for device_get_attribute(). */
#define CU_ATTRIBUTE_MULTIPROCESSORS 16
#define CU_ATTRIBUTE_PCI_BUS 33
#define CU_ATTRIBUTE_PCI_DEVICE 34
#define CU_ATTRIBUTE_PCI_DOMAIN 50
#define CU_ATTRIBUTE_CAPABILITY_MAJOR 75
#define CU_ATTRIBUTE_CAPABILITY_MINOR 76
#define CU_ATTRIBUTE_VMM 102
#define CU_ATTRIBUTE_POSIX_FD 103
#define CU_ATTRIBUTE_RDMA_WITH_VMM 110
#define CU_ATTRIBUTE_FABRIC 128

#define CU_LOCATION_DEVICE 1
#define CU_ALLOCATION_PINNED 1
#define CU_HANDLE_POSIX_FD 1
#define CU_HANDLE_FABRIC 8
#define CU_GRANULARITY_MINIMUM 0
#define CU_GRANULARITY_RECOMMENDED 1
#define CU_ACCESS_READ 1
#define CU_ACCESS_READWRITE 3

#define CU_STREAM_NON_BLOCKING 1
#define CU_CAPTURE_RELAXED 2
#define CU_EVENT_BLOCKING_SYNC 1
#define CU_EVENT_DISABLE_TIMING 2
#define CU_HOST_ALLOC_PORTABLE 1
#define CU_IPC_LAZY_PEER_ACCESS 1

struct cu_location {
	int type;
	int id;
};

struct cu_allocation {
	int type;
	int handle_types;
	struct cu_location location;
	void *unused;
	struct {
		uint8_t compression;
		uint8_t rdma_capable;
		uint16_t usage;
		uint8_t reserved[4];
	} flags;
};

struct cu_access {
	struct cu_location location;
	int flags;
};

struct cu_ipc_handle {
	uint8_t bytes[64];
};

struct cu_uuid {
	uint8_t bytes[16];
};

/* X(field, symbol, parameters): every function is there, or the driver is too old. */
#define CUDA_DRIVER_FUNCTIONS(X)                                                                    \
	X(init, "cuInit", (unsigned flags))                                                         \
	X(driver_version, "cuDriverGetVersion", (int *ret))                                         \
	X(error_name, "cuGetErrorName", (cu_result r, const char **ret))                            \
	X(error_string, "cuGetErrorString", (cu_result r, const char **ret))                        \
	X(device_count, "cuDeviceGetCount", (int *ret))                                             \
	X(device_get, "cuDeviceGet", (cu_device * ret, int ordinal))                                \
	X(device_name, "cuDeviceGetName", (char *ret, int size, cu_device d))                       \
	X(device_uuid, "cuDeviceGetUuid_v2", (struct cu_uuid * ret, cu_device d))                   \
	X(device_total_mem, "cuDeviceTotalMem_v2", (size_t * ret, cu_device d))                     \
	X(device_attribute, "cuDeviceGetAttribute", (int *ret, int attribute, cu_device d))         \
	X(device_can_access_peer, "cuDeviceCanAccessPeer", (int *ret, cu_device d, cu_device peer)) \
	X(primary_ctx_retain, "cuDevicePrimaryCtxRetain", (cu_context * ret, cu_device d))          \
	X(primary_ctx_release, "cuDevicePrimaryCtxRelease_v2", (cu_device d))                       \
	X(ctx_push, "cuCtxPushCurrent_v2", (cu_context c))                                          \
	X(ctx_pop, "cuCtxPopCurrent_v2", (cu_context * ret))                                        \
	X(ctx_current, "cuCtxGetCurrent", (cu_context * ret))                                       \
	X(ctx_device, "cuCtxGetDevice", (cu_device * ret))                                          \
	X(ctx_synchronize, "cuCtxSynchronize", (void))                                              \
	X(ctx_enable_peer, "cuCtxEnablePeerAccess", (cu_context peer, unsigned flags))              \
	X(mem_info, "cuMemGetInfo_v2", (size_t * ret_free, size_t * ret_total))                     \
	X(mem_alloc, "cuMemAlloc_v2", (cu_ptr * ret, size_t size))                                  \
	X(mem_free, "cuMemFree_v2", (cu_ptr p))                                                     \
	X(mem_host_alloc, "cuMemHostAlloc", (void **ret, size_t size, unsigned flags))              \
	X(mem_host_free, "cuMemFreeHost", (void *p))                                                \
	X(memcpy_to_device, "cuMemcpyHtoD_v2", (cu_ptr to, const void *from, size_t size))          \
	X(memcpy_to_host, "cuMemcpyDtoH_v2", (void *to, cu_ptr from, size_t size))                  \
	X(memcpy_on_device, "cuMemcpyDtoD_v2", (cu_ptr to, cu_ptr from, size_t size))               \
	X(memcpy_to_device_async, "cuMemcpyHtoDAsync_v2",                                           \
	  (cu_ptr to, const void *from, size_t size, cu_stream s))                                  \
	X(memcpy_to_host_async, "cuMemcpyDtoHAsync_v2",                                             \
	  (void *to, cu_ptr from, size_t size, cu_stream s))                                        \
	X(memcpy_on_device_async, "cuMemcpyDtoDAsync_v2",                                           \
	  (cu_ptr to, cu_ptr from, size_t size, cu_stream s))                                       \
	X(memset8, "cuMemsetD8_v2", (cu_ptr p, uint8_t value, size_t size))                         \
	X(memset8_async, "cuMemsetD8Async", (cu_ptr p, uint8_t value, size_t size, cu_stream s))    \
	X(mem_create, "cuMemCreate",                                                                \
	  (cu_handle * ret, size_t size, const struct cu_allocation *a, uint64_t flags))            \
	X(mem_release, "cuMemRelease", (cu_handle h))                                               \
	X(mem_export, "cuMemExportToShareableHandle",                                               \
	  (void *ret, cu_handle h, int type, uint64_t flags))                                       \
	X(mem_import, "cuMemImportFromShareableHandle", (cu_handle * ret, void *os, int type))      \
	X(mem_granularity, "cuMemGetAllocationGranularity",                                         \
	  (size_t * ret, const struct cu_allocation *a, int option))                                \
	X(mem_properties, "cuMemGetAllocationPropertiesFromHandle",                                 \
	  (struct cu_allocation * ret, cu_handle h))                                                \
	X(mem_reserve, "cuMemAddressReserve",                                                       \
	  (cu_ptr * ret, size_t size, size_t alignment, cu_ptr at, uint64_t flags))                 \
	X(mem_unreserve, "cuMemAddressFree", (cu_ptr p, size_t size))                               \
	X(mem_map, "cuMemMap", (cu_ptr p, size_t size, size_t offset, cu_handle h, uint64_t flags)) \
	X(mem_unmap, "cuMemUnmap", (cu_ptr p, size_t size))                                         \
	X(mem_set_access, "cuMemSetAccess",                                                         \
	  (cu_ptr p, size_t size, const struct cu_access *a, size_t n))                             \
	X(ipc_get, "cuIpcGetMemHandle", (struct cu_ipc_handle * ret, cu_ptr p))                     \
	X(ipc_open, "cuIpcOpenMemHandle_v2",                                                        \
	  (cu_ptr * ret, struct cu_ipc_handle h, unsigned flags))                                   \
	X(ipc_close, "cuIpcCloseMemHandle", (cu_ptr p))                                             \
	X(stream_create, "cuStreamCreate", (cu_stream * ret, unsigned flags))                       \
	X(stream_destroy, "cuStreamDestroy_v2", (cu_stream s))                                      \
	X(stream_synchronize, "cuStreamSynchronize", (cu_stream s))                                 \
	X(stream_query, "cuStreamQuery", (cu_stream s))                                             \
	X(stream_wait_event, "cuStreamWaitEvent", (cu_stream s, cu_event e, unsigned flags))        \
	X(capture_mode, "cuThreadExchangeStreamCaptureMode", (int *mode))                           \
	X(event_create, "cuEventCreate", (cu_event * ret, unsigned flags))                          \
	X(event_destroy, "cuEventDestroy_v2", (cu_event e))                                         \
	X(event_record, "cuEventRecord", (cu_event e, cu_stream s))                                 \
	X(event_query, "cuEventQuery", (cu_event e))                                                \
	X(event_synchronize, "cuEventSynchronize", (cu_event e))                                    \
	X(event_elapsed, "cuEventElapsedTime", (float *ret_ms, cu_event from, cu_event to))         \
	X(module_load, "cuModuleLoadData", (cu_module * ret, const void *image))                    \
	X(module_unload, "cuModuleUnload", (cu_module m))                                           \
	X(module_function, "cuModuleGetFunction",                                                   \
	  (cu_function * ret, cu_module m, const char *name))                                       \
	X(launch, "cuLaunchKernel",                                                                 \
	  (cu_function f, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,      \
	   unsigned block_y, unsigned block_z, unsigned shared_bytes, cu_stream s,                  \
	   void **parameters, void **extra))

struct cuda_driver {
#define X(field, symbol, parameters) cu_result(*field) parameters;
	CUDA_DRIVER_FUNCTIONS(X)
#undef X
};

#define CUDA_WHY_SIZE 256

/*
 * Opens the driver and initialises it, once for the process; later calls return the first result. May take a second,
 * and may hang with the driver. 0; -ENODEV: no libcuda.so.1, or no GPU in it; -ENOSYS: it is too old; -EIO; -ECHILD:
 * the process that forked this one opened it, and it is of no use here. On failure `ret_why` receives a clause for a
 * person: "libcuda.so.1 cannot be opened: ...".
 */
int cuda_driver_open(const struct cuda_driver **ret, char ret_why[CUDA_WHY_SIZE]);

/* "CUDA_ERROR_OUT_OF_MEMORY: out of memory", as far as the driver has words for it. */
void cuda_driver_explain(const struct cuda_driver *d, cu_result result, char ret_why[CUDA_WHY_SIZE]);

/* 0, -ENOMEM, -ENODEV, -EINVAL, -EOPNOTSUPP, -EPERM or -EIO. */
int cuda_driver_errno(cu_result result);

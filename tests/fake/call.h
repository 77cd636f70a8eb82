/*
 * Calls of the driver
 *
 * What each function of the stand-in for libcuda begins with, and the types of the driver's interface:
 * declared here again, and not taken from ipc/cuda, so that a mistake there is not repeated here.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef int cu_result;
typedef int cu_device;
typedef uint64_t cu_ptr;
typedef uint64_t cu_handle;
typedef struct cu_context *cu_context;
typedef struct cu_stream *cu_stream;
typedef struct cu_event *cu_event;
typedef struct cu_module *cu_module;
typedef struct cu_function *cu_function;

/* X(number, name, text) */
#define CU_RESULTS(X)                                                                              \
	X(0, SUCCESS, "no error")                                                                  \
	X(1, ERROR_INVALID_VALUE, "invalid argument")                                              \
	X(2, ERROR_OUT_OF_MEMORY, "out of memory")                                                 \
	X(3, ERROR_NOT_INITIALIZED, "initialization error")                                        \
	X(100, ERROR_NO_DEVICE, "no CUDA-capable device is detected")                              \
	X(101, ERROR_INVALID_DEVICE, "invalid device ordinal")                                     \
	X(200, ERROR_INVALID_IMAGE, "device kernel image is invalid")                              \
	X(201, ERROR_INVALID_CONTEXT, "invalid device context")                                    \
	X(209, ERROR_NO_BINARY_FOR_GPU, "no kernel image is available for execution")              \
	X(217, ERROR_PEER_ACCESS_UNSUPPORTED, "peer access is not supported")                      \
	X(218, ERROR_INVALID_PTX, "a PTX JIT compilation failed")                                  \
	X(221, ERROR_JIT_COMPILER_NOT_FOUND, "PTX JIT compiler library not found")                 \
	X(400, ERROR_INVALID_HANDLE, "invalid resource handle")                                    \
	X(500, ERROR_NOT_FOUND, "named symbol not found")                                          \
	X(600, ERROR_NOT_READY, "device not ready")                                                \
	X(700, ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered")                  \
	X(701, ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch")           \
	X(704, ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled")                \
	X(719, ERROR_LAUNCH_FAILED, "unspecified launch failure")                                  \
	X(800, ERROR_NOT_PERMITTED, "operation not permitted")                                     \
	X(801, ERROR_NOT_SUPPORTED, "operation not supported")                                     \
	X(900, ERROR_STREAM_CAPTURE_UNSUPPORTED,                                                   \
	  "operation not permitted when stream is capturing")                                      \
	X(999, ERROR_UNKNOWN, "unknown error")

enum {
#define X(number, name, text) CUDA_##name = number,
	CU_RESULTS(X)
#undef X
};

/* Defines a function of the driver, which nothing declares elsewhere. */
#define CALL(symbol, ...)                                                                          \
	cu_result symbol(__VA_ARGS__);                                                             \
	cu_result symbol(__VA_ARGS__)

enum call_needs {
	CALL_NEEDS_NOTHING,
	CALL_NEEDS_INIT,
	CALL_NEEDS_CONTEXT, /* a current one, in which nothing went wrong yet */
};

/* The result the call has to end with at once: by the script of failures, or for want of what it needs. */
cu_result call_enter(const char *symbol, enum call_needs needs);

#define CALL_ENTER(needs)                                                                          \
	do {                                                                                       \
		cu_result call_r_ = call_enter(__func__, needs);                                   \
		if (call_r_)                                                                       \
			return call_r_;                                                            \
	} while (0)

#include "tests/fake/context.h"

#include <pthread.h>
#include <stdbool.h>

#include "tests/fake/address.h"
#include "tests/fake/allocation.h"
#include "tests/fake/device.h"
#include "tests/fake/state.h"
#include "tests/fake/stream.h"

#define DEPTH_MAX 64

struct cu_context {
	int gpu;
	unsigned n_holds;
	int error; /* atomic: a cu_result */
	struct allocation *cost;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* n_holds and cost of all */
static struct cu_context contexts[DEVICE_N_MAX]; /* indexed by GPU */

static __thread cu_context stack[DEPTH_MAX];
static __thread int depth;

static bool is_alive(cu_context c)
{
	bool alive;

	if (c < contexts || c >= contexts + DEVICE_N_MAX)
		return false;
	(void)pthread_mutex_lock(&mutex);
	alive = c->n_holds > 0;
	(void)pthread_mutex_unlock(&mutex);
	return alive;
}

cu_result context_error(cu_context c)
{
	return __atomic_load_n(&c->error, __ATOMIC_ACQUIRE);
}

void context_break(cu_context c, cu_result error)
{
	__atomic_store_n(&c->error, error, __ATOMIC_RELEASE);
}

cu_context context_current(void)
{
	return depth ? stack[depth - 1] : NULL;
}

cu_result context_check(void)
{
	cu_context c = context_current();

	return c && is_alive(c) ? context_error(c) : CUDA_ERROR_INVALID_CONTEXT;
}

int context_gpu_of(cu_context c)
{
	return c->gpu;
}

int context_gpu(void)
{
	return context_current()->gpu;
}

cu_result context_wait(void)
{
	stream_wait_all(context_current());
	return context_error(context_current());
}

/* Under the mutex. */
static cu_result start(cu_context c, int gpu)
{
	uint64_t cost = state_number("FAKE_CUDA_CONTEXT", 8u << 20);
	cu_result r = allocation_new(ALLOCATION_CONTEXT, gpu, cost, 0, false, &c->cost);

	c->gpu = gpu;
	c->error = CUDA_SUCCESS;
	return r;
}

CALL(cuDevicePrimaryCtxRetain, cu_context *ret, cu_device d)
{
	cu_result r = CUDA_SUCCESS;
	cu_context c;

	CALL_ENTER(CALL_NEEDS_INIT);
	if (!device_is_valid(d))
		return CUDA_ERROR_INVALID_DEVICE;
	c = &contexts[device_gpu(d)];
	(void)pthread_mutex_lock(&mutex);
	if (!c->n_holds)
		r = start(c, device_gpu(d));
	if (!r) {
		c->n_holds++;
		*ret = c;
	}
	(void)pthread_mutex_unlock(&mutex);
	return r;
}

CALL(cuDevicePrimaryCtxRelease_v2, cu_device d)
{
	struct allocation *cost = NULL;
	bool ends;
	cu_context c;

	CALL_ENTER(CALL_NEEDS_INIT);
	if (!device_is_valid(d))
		return CUDA_ERROR_INVALID_DEVICE;
	c = &contexts[device_gpu(d)];
	if (!is_alive(c))
		return CUDA_ERROR_INVALID_CONTEXT;
	(void)pthread_mutex_lock(&mutex);
	ends = --c->n_holds == 0;
	if (ends) {
		cost = c->cost;
		c->cost = NULL;
	}
	(void)pthread_mutex_unlock(&mutex);
	if (ends) {
		stream_end_all(c);
		address_forget(c->gpu);
	}
	allocation_unref(cost);
	return CUDA_SUCCESS;
}

CALL(cuCtxPushCurrent_v2, cu_context c)
{
	CALL_ENTER(CALL_NEEDS_INIT);
	if (!is_alive(c) || depth == DEPTH_MAX)
		return CUDA_ERROR_INVALID_CONTEXT;
	stack[depth++] = c;
	return CUDA_SUCCESS;
}

CALL(cuCtxPopCurrent_v2, cu_context *ret)
{
	CALL_ENTER(CALL_NEEDS_INIT);
	if (!depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	depth--;
	if (ret)
		*ret = stack[depth];
	return CUDA_SUCCESS;
}

CALL(cuCtxGetCurrent, cu_context *ret)
{
	CALL_ENTER(CALL_NEEDS_INIT);
	*ret = context_current();
	return CUDA_SUCCESS;
}

CALL(cuCtxGetDevice, cu_device *ret)
{
	CALL_ENTER(CALL_NEEDS_INIT);
	if (!depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	*ret = device_of_gpu(context_gpu());
	return CUDA_SUCCESS;
}

CALL(cuCtxSynchronize, void)
{
	CALL_ENTER(CALL_NEEDS_CONTEXT);
	return context_wait();
}

CALL(cuCtxEnablePeerAccess, cu_context peer, unsigned flags)
{
	static bool enabled[DEVICE_N_MAX][DEVICE_N_MAX];
	bool *here;

	CALL_ENTER(CALL_NEEDS_CONTEXT);
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (!is_alive(peer) || peer == context_current())
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!device_reaches(context_gpu(), peer->gpu))
		return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	here = &enabled[context_gpu()][peer->gpu];
	if (__atomic_exchange_n(here, true, __ATOMIC_ACQ_REL))
		return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
	address_enable_peer(context_gpu(), peer->gpu);
	return CUDA_SUCCESS;
}

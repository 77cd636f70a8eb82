#include "tests/fake/call.h"

#include <unistd.h>

#include "tests/fake/context.h"
#include "tests/fake/device.h"
#include "tests/fake/failure.h"
#include "tests/fake/state.h"

static pid_t initialized_by; /* a child of it cannot use the driver, as with the real one */

cu_result call_enter(const char *symbol, enum call_needs needs)
{
	cu_result r = failure_of(symbol);

	if (r)
		return r;
	if (needs >= CALL_NEEDS_INIT && initialized_by != getpid())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (needs >= CALL_NEEDS_CONTEXT)
		return context_check();
	return CUDA_SUCCESS;
}

CALL(cuInit, unsigned flags)
{
	CALL_ENTER(CALL_NEEDS_NOTHING);
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (initialized_by && initialized_by != getpid())
		return CUDA_ERROR_NOT_INITIALIZED;
	if (!state_folder() || device_n() == 0)
		return CUDA_ERROR_NO_DEVICE;
	initialized_by = getpid();
	return CUDA_SUCCESS;
}

CALL(cuDriverGetVersion, int *ret)
{
	CALL_ENTER(CALL_NEEDS_NOTHING);
	*ret = (int)state_number("FAKE_CUDA_VERSION", 13000);
	return CUDA_SUCCESS;
}

static const struct {
	cu_result number;
	const char *name, *text;
} results[] = {
#define X(number, name, text) {number, "CUDA_" #name, text},
	CU_RESULTS(X)
#undef X
};

CALL(cuGetErrorName, cu_result result, const char **ret)
{
	*ret = NULL;
	for (size_t i = 0; i < sizeof(results) / sizeof(results[0]); i++)
		if (results[i].number == result)
			*ret = results[i].name;
	return *ret ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CALL(cuGetErrorString, cu_result result, const char **ret)
{
	*ret = NULL;
	for (size_t i = 0; i < sizeof(results) / sizeof(results[0]); i++)
		if (results[i].number == result)
			*ret = results[i].text;
	return *ret ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

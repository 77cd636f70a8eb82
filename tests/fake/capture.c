#include "tests/fake/capture.h"

#include <unistd.h>

#include "tests/fake/call.h"
#include "tests/fake/state.h"

#define RELAXED 2

static __thread int mode;

bool capture_forbids(void)
{
	char path[4096];

	state_path("capture", path, sizeof(path));
	return mode != RELAXED && access(path, F_OK) == 0;
}

CALL(cuThreadExchangeStreamCaptureMode, int *other)
{
	int before = mode;

	CALL_ENTER(CALL_NEEDS_INIT);
	if (*other < 0 || *other > RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	mode = *other;
	*other = before;
	return CUDA_SUCCESS;
}

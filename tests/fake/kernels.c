#include "tests/fake/kernels.h"

#include <string.h>

cu_result kernel_fill(struct launch *l)
{
	cu_ptr p = kernel_parameter(l, 0, cu_ptr);
	uint64_t size = kernel_parameter(l, 1, uint64_t);
	void *bytes = kernel_bytes(l, p, size, true);

	if (!bytes)
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	memset(bytes, kernel_parameter(l, 2, uint8_t), size);
	return CUDA_SUCCESS;
}

#include "tests/fake/kernels.h"

#include <string.h>

#include "ipc/digest.h"

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

/* One thread block a leaf, of 256 threads: with fewer blocks some leaves would get no digest. */
cu_result kernel_digest(struct launch *l)
{
	cu_ptr data = kernel_parameter(l, 0, cu_ptr), out = kernel_parameter(l, 4, cu_ptr);
	uint64_t size = kernel_parameter(l, 1, uint64_t), first = kernel_parameter(l, 2, uint64_t);
	uint64_t n = kernel_parameter(l, 3, uint64_t);
	const char *bytes = kernel_bytes(l, data, size, false);
	uint8_t(*digests)[HASH_SIZE] = kernel_bytes(l, out, n * HASH_SIZE, true);

	if (!bytes || !digests || data % 16 != 0)
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	if (l->block[0] != 256 || l->shared_bytes != 0)
		return CUDA_ERROR_INVALID_VALUE;
	for (uint64_t i = 0; i < n && i < l->grid[0] && first + i < digest_n_leaves(size); i++)
		digest_leaf(bytes, size, first + i, digests[i]);
	return CUDA_SUCCESS;
}

#include "tests/fake/kernels.h"

#include <string.h>
#include <time.h>

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

cu_result kernel_gpu_fill(struct launch *l)
{
	uint64_t n = kernel_parameter(l, 1, uint64_t);
	uint32_t *words = kernel_bytes(l, kernel_parameter(l, 0, cu_ptr), n * 4, true);

	if (!words)
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	for (uint64_t i = 0; i < n; i++)
		words[i] = (uint32_t)i * 2654435761u + kernel_parameter(l, 2, uint32_t);
	return CUDA_SUCCESS;
}

cu_result kernel_gpu_sum(struct launch *l)
{
	uint64_t n = kernel_parameter(l, 1, uint64_t), sum = 0;
	const uint32_t *words = kernel_bytes(l, kernel_parameter(l, 0, cu_ptr), n * 4, false);
	uint64_t *out = kernel_bytes(l, kernel_parameter(l, 2, cu_ptr), sizeof(*out), true);

	if (!words || !out)
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	for (uint64_t i = 0; i < n; i++)
		sum += words[i] * (2 * i + 1);
	*out += sum;
	return CUDA_SUCCESS;
}

static uint64_t now_ns(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Looks up the words each time, since they may be gone meanwhile; leaves the processor to others. */
cu_result kernel_gpu_spin(struct launch *l)
{
	uint64_t end = now_ns() + kernel_parameter(l, 3, uint64_t);
	uint64_t size = kernel_parameter(l, 1, uint64_t) * 4;

	do {
		if (!kernel_bytes(l, kernel_parameter(l, 0, cu_ptr), size, false))
			return CUDA_ERROR_ILLEGAL_ADDRESS;
		allocation_unref(l->holds[--l->n_holds]);
		(void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	} while (now_ns() < end);
	return CUDA_SUCCESS;
}

cu_result kernel_gpu_poke(struct launch *l)
{
	uint32_t *word = kernel_bytes(l, kernel_parameter(l, 0, cu_ptr), sizeof(*word), true);

	if (!word)
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	*word = kernel_parameter(l, 1, uint32_t);
	return CUDA_SUCCESS;
}

#include "ipc/dtype.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

static const struct {
	const char *name;
	unsigned bits;
	uint32_t block_elements, block_bytes; /* instead of bits */
} dtypes[DTYPE_END] = {
	[DTYPE_BOOL] = {"BOOL", 8},
	[DTYPE_F4] = {"F4", 4},
	[DTYPE_F6_E2M3] = {"F6_E2M3", 6},
	[DTYPE_F6_E3M2] = {"F6_E3M2", 6},
	[DTYPE_U8] = {"U8", 8},
	[DTYPE_I8] = {"I8", 8},
	[DTYPE_F8_E5M2] = {"F8_E5M2", 8},
	[DTYPE_F8_E4M3] = {"F8_E4M3", 8},
	[DTYPE_F8_E8M0] = {"F8_E8M0", 8},
	[DTYPE_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 8},
	[DTYPE_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 8},
	[DTYPE_I16] = {"I16", 16},
	[DTYPE_U16] = {"U16", 16},
	[DTYPE_F16] = {"F16", 16},
	[DTYPE_BF16] = {"BF16", 16},
	[DTYPE_I32] = {"I32", 32},
	[DTYPE_U32] = {"U32", 32},
	[DTYPE_F32] = {"F32", 32},
	[DTYPE_C64] = {"C64", 64},
	[DTYPE_F64] = {"F64", 64},
	[DTYPE_I64] = {"I64", 64},
	[DTYPE_U64] = {"U64", 64},
	[DTYPE_Q4_0] = {"Q4_0", 0, 32, 18},
	[DTYPE_Q4_1] = {"Q4_1", 0, 32, 20},
	[DTYPE_Q5_0] = {"Q5_0", 0, 32, 22},
	[DTYPE_Q5_1] = {"Q5_1", 0, 32, 24},
	[DTYPE_Q8_0] = {"Q8_0", 0, 32, 34},
	[DTYPE_Q8_1] = {"Q8_1", 0, 32, 40},
	[DTYPE_Q2_K] = {"Q2_K", 0, 256, 84},
	[DTYPE_Q3_K] = {"Q3_K", 0, 256, 110},
	[DTYPE_Q4_K] = {"Q4_K", 0, 256, 144},
	[DTYPE_Q5_K] = {"Q5_K", 0, 256, 176},
	[DTYPE_Q6_K] = {"Q6_K", 0, 256, 210},
	[DTYPE_Q8_K] = {"Q8_K", 0, 256, 292},
	[DTYPE_IQ2_XXS] = {"IQ2_XXS", 0, 256, 66},
	[DTYPE_IQ2_XS] = {"IQ2_XS", 0, 256, 74},
	[DTYPE_IQ3_XXS] = {"IQ3_XXS", 0, 256, 98},
	[DTYPE_IQ1_S] = {"IQ1_S", 0, 256, 50},
	[DTYPE_IQ4_NL] = {"IQ4_NL", 0, 32, 18},
	[DTYPE_IQ3_S] = {"IQ3_S", 0, 256, 110},
	[DTYPE_IQ2_S] = {"IQ2_S", 0, 256, 82},
	[DTYPE_IQ4_XS] = {"IQ4_XS", 0, 256, 136},
	[DTYPE_IQ1_M] = {"IQ1_M", 0, 256, 56},
	[DTYPE_TQ1_0] = {"TQ1_0", 0, 256, 54},
	[DTYPE_TQ2_0] = {"TQ2_0", 0, 256, 66},
	[DTYPE_MXFP4] = {"MXFP4", 0, 32, 17},
	[DTYPE_NVFP4] = {"NVFP4", 0, 64, 36},
	[DTYPE_Q1_0] = {"Q1_0", 0, 128, 18},
};

const char *dtype_name(unsigned dtype)
{
	return dtype < DTYPE_END ? dtypes[dtype].name : NULL;
}

unsigned dtype_bits(unsigned dtype)
{
	return dtype < DTYPE_END ? dtypes[dtype].bits : 0;
}

bool dtype_is_block(unsigned dtype)
{
	return dtype < DTYPE_END && dtypes[dtype].block_elements != 0;
}

int dtype_block(unsigned dtype, uint32_t *ret_elements, uint32_t *ret_bytes)
{
	uint32_t elements = 1;
	unsigned bits = dtype_bits(dtype);

	if (!dtype_name(dtype))
		return -EINVAL;
	if (dtype_is_block(dtype)) {
		*ret_elements = dtypes[dtype].block_elements;
		*ret_bytes = dtypes[dtype].block_bytes;
		return 0;
	}
	while (elements * bits % 8)
		elements++;
	*ret_elements = elements;
	*ret_bytes = elements * bits / 8;
	return 0;
}

int dtype_parse(const char *name)
{
	for (int i = 1; i < DTYPE_END; i++)
		if (dtypes[i].name[0] == name[0] && !strcmp(dtypes[i].name, name))
			return i;
	return -EINVAL;
}

/* A row has whole blocks; a scalar has no row. */
static int size_in_blocks(unsigned dtype, uint32_t n_dims, const uint64_t *shape, uint64_t n,
			  uint64_t *ret)
{
	uint32_t elements = dtypes[dtype].block_elements;

	if (n_dims == 0 || shape[n_dims - 1] % elements)
		return -EINVAL;
	if (__builtin_mul_overflow(n / elements, dtypes[dtype].block_bytes, &n))
		return -EOVERFLOW;
	*ret = n;
	return 0;
}

int dtype_tensor_size(unsigned dtype, uint32_t n_dims, const uint64_t *shape, uint64_t *ret)
{
	uint64_t n = 1;

	if (!dtype_name(dtype))
		return -EINVAL;
	for (uint32_t i = 0; i < n_dims; i++)
		if (__builtin_mul_overflow(n, shape[i], &n))
			return -EOVERFLOW;
	if (dtype_is_block(dtype))
		return size_in_blocks(dtype, n_dims, shape, n, ret);
	if (__builtin_mul_overflow(n, dtype_bits(dtype), &n))
		return -EOVERFLOW;
	if (n % 8)
		return -EINVAL;
	*ret = n / 8;
	return 0;
}

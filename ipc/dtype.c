#include "ipc/dtype.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

static const struct {
	const char *name;
	unsigned bits;
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
};

const char *dtype_name(unsigned dtype)
{
	return dtype < DTYPE_END ? dtypes[dtype].name : NULL;
}

unsigned dtype_bits(unsigned dtype)
{
	return dtype < DTYPE_END ? dtypes[dtype].bits : 0;
}

int dtype_parse(const char *name)
{
	for (int i = 1; i < DTYPE_END; i++)
		if (!strcmp(dtypes[i].name, name))
			return i;
	return -EINVAL;
}

int dtype_tensor_size(unsigned dtype, uint32_t n_dims, const uint64_t *shape, uint64_t *ret)
{
	uint64_t n = 1;

	if (!dtype_bits(dtype))
		return -EINVAL;
	for (uint32_t i = 0; i < n_dims; i++)
		if (__builtin_mul_overflow(n, shape[i], &n))
			return -EOVERFLOW;
	if (__builtin_mul_overflow(n, dtype_bits(dtype), &n))
		return -EOVERFLOW;
	if (n % 8)
		return -EINVAL;
	*ret = n / 8;
	return 0;
}

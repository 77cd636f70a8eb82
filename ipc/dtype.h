/*
 * Element types, those of safetensors. The codes are ABI: layouts contain them.
 */
#pragma once

#include <stdint.h>

enum dtype {
	DTYPE_BOOL = 1,
	DTYPE_F4,
	DTYPE_F6_E2M3,
	DTYPE_F6_E3M2,
	DTYPE_U8,
	DTYPE_I8,
	DTYPE_F8_E5M2,
	DTYPE_F8_E4M3,
	DTYPE_F8_E8M0,
	DTYPE_F8_E4M3FNUZ,
	DTYPE_F8_E5M2FNUZ,
	DTYPE_I16,
	DTYPE_U16,
	DTYPE_F16,
	DTYPE_BF16,
	DTYPE_I32,
	DTYPE_U32,
	DTYPE_F32,
	DTYPE_C64,
	DTYPE_F64,
	DTYPE_I64,
	DTYPE_U64,
	DTYPE_END,
};

/* NULL and 0 for codes that are none. */
const char *dtype_name(unsigned dtype);
unsigned dtype_bits(unsigned dtype);

/* -EINVAL */
int dtype_parse(const char *name);

/*
 * Bytes of a row-major tensor. -EOVERFLOW when a product on the way does not fit, as the reference
 * does: [2^63, 4, 0] is refused although it holds nothing; -EINVAL when the bits do not fill bytes.
 */
int dtype_tensor_size(unsigned dtype, uint32_t n_dims, const uint64_t *shape, uint64_t *ret);

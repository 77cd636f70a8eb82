/*
 * Element types: those of safetensors, and behind them the block-quantised types of GGUF. A block is some consecutive
 * elements of a row with the scales that they share. The codes are ABI: layouts contain them.
 */
#pragma once

#include <stdbool.h>
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
	DTYPE_Q4_0,
	DTYPE_Q4_1,
	DTYPE_Q5_0,
	DTYPE_Q5_1,
	DTYPE_Q8_0,
	DTYPE_Q8_1,
	DTYPE_Q2_K,
	DTYPE_Q3_K,
	DTYPE_Q4_K,
	DTYPE_Q5_K,
	DTYPE_Q6_K,
	DTYPE_Q8_K,
	DTYPE_IQ2_XXS,
	DTYPE_IQ2_XS,
	DTYPE_IQ3_XXS,
	DTYPE_IQ1_S,
	DTYPE_IQ4_NL,
	DTYPE_IQ3_S,
	DTYPE_IQ2_S,
	DTYPE_IQ4_XS,
	DTYPE_IQ1_M,
	DTYPE_TQ1_0,
	DTYPE_TQ2_0,
	DTYPE_MXFP4,
	DTYPE_NVFP4,
	DTYPE_Q1_0,
	DTYPE_END,
};

/* NULL for codes that are none. */
const char *dtype_name(unsigned dtype);

/* Bits of one element. 0 for codes that are none, and for blocks, whose elements have no size of their own. */
unsigned dtype_bits(unsigned dtype);

/* True for the types of GGUF, which safetensors does not have. */
bool dtype_is_block(unsigned dtype);

/*
 * The fewest elements that fill whole bytes, and these bytes: the block of a block type, 1 and 4 for F32, 2 and 1 for F4.
 * -EINVAL for codes that are none.
 */
int dtype_block(unsigned dtype, uint32_t *ret_elements, uint32_t *ret_bytes);

/* -EINVAL */
int dtype_parse(const char *name);

/*
 * Bytes of a row-major tensor. -EOVERFLOW when a product on the way does not fit, as the reference
 * does: [2^63, 4, 0] is refused although it holds nothing; -EINVAL when the bits do not fill bytes, or the
 * innermost dimension no blocks.
 */
int dtype_tensor_size(unsigned dtype, uint32_t n_dims, const uint64_t *shape, uint64_t *ret);

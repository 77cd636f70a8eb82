/* Element types: the codes are ABI, the sizes are those of safetensors. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <inttypes.h>

#include "ipc/base/num.h"
#include "ipc/dtype.h"
#include "weightd.h"

#define UNTOUCHED 0x5a5a5a5a5a5a5a5au

/* In the order of their codes, which start with 1. */
static const struct {
	const char *name;
	unsigned bits;
} dtypes[] = {
	{"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
	{"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
	{"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
	{"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
	{"I64", 64},        {"U64", 64},
};

/* Behind them: names, and elements and bytes of a block, as ggml has them. */
static const struct {
	const char *name;
	uint32_t elements, bytes;
} blocks[] = {
	{"Q4_0", 32, 18},     {"Q4_1", 32, 20},    {"Q5_0", 32, 22},     {"Q5_1", 32, 24},
	{"Q8_0", 32, 34},     {"Q8_1", 32, 40},    {"Q2_K", 256, 84},    {"Q3_K", 256, 110},
	{"Q4_K", 256, 144},   {"Q5_K", 256, 176},  {"Q6_K", 256, 210},   {"Q8_K", 256, 292},
	{"IQ2_XXS", 256, 66}, {"IQ2_XS", 256, 74}, {"IQ3_XXS", 256, 98}, {"IQ1_S", 256, 50},
	{"IQ4_NL", 32, 18},   {"IQ3_S", 256, 110}, {"IQ2_S", 256, 82},   {"IQ4_XS", 256, 136},
	{"IQ1_M", 256, 56},   {"TQ1_0", 256, 54},  {"TQ2_0", 256, 66},   {"MXFP4", 32, 17},
	{"NVFP4", 64, 36},    {"Q1_0", 128, 18},
};

static void each_code_has_its_name_and_bits(void **state)
{
	(void)state;
	assert_int_equal(DTYPE_END, ARRAY_LEN(dtypes) + ARRAY_LEN(blocks) + 1);
	for (unsigned i = 0; i < ARRAY_LEN(dtypes); i++) {
		assert_string_equal(dtype_name(i + 1), dtypes[i].name);
		assert_int_equal(dtype_bits(i + 1), dtypes[i].bits);
		assert_int_equal(dtype_parse(dtypes[i].name), i + 1);
	}
}

static void each_block_type_has_its_block_and_no_bits(void **state)
{
	(void)state;
	for (unsigned i = 0; i < ARRAY_LEN(blocks); i++) {
		unsigned code = (unsigned)ARRAY_LEN(dtypes) + 1 + i;
		uint32_t elements, bytes;

		assert_string_equal(dtype_name(code), blocks[i].name);
		assert_int_equal(dtype_parse(blocks[i].name), code);
		assert_int_equal(dtype_bits(code), 0);
		assert_true(dtype_is_block(code));
		assert_int_equal(weightd_dtype_block((enum weightd_dtype)code, &elements, &bytes),
				 0);
		assert_int_equal(elements, blocks[i].elements);
		assert_int_equal(bytes, blocks[i].bytes);
	}
}

static void other_types_have_the_fewest_elements_of_whole_bytes(void **state)
{
	uint32_t elements, bytes = UINT32_MAX;

	(void)state;
	for (unsigned i = 0; i < ARRAY_LEN(dtypes); i++) {
		assert_int_equal(dtype_block(i + 1, &elements, &bytes), 0);
		assert_int_equal(elements, dtypes[i].bits == 4 ? 2 : dtypes[i].bits == 6 ? 4 : 1);
		assert_int_equal(bytes * 8, elements * dtypes[i].bits);
		assert_false(dtype_is_block(i + 1));
	}
	assert_int_equal(dtype_block(0, &elements, &bytes), -EINVAL);
	assert_int_equal(dtype_block(DTYPE_END, &elements, &bytes), -EINVAL);
	assert_int_equal(weightd_dtype_block((enum weightd_dtype)255, &elements, &bytes), -EINVAL);
}

static void the_public_codes_are_the_same(void **state)
{
	(void)state;
	for (unsigned i = 0; i <= DTYPE_END; i++) {
		const char *name = dtype_name(i);

		assert_int_equal(weightd_dtype_bits((enum weightd_dtype)i), dtype_bits(i));
		if (!name) {
			assert_null(weightd_dtype_name((enum weightd_dtype)i));
			continue;
		}
		assert_string_equal(weightd_dtype_name((enum weightd_dtype)i), name);
		assert_int_equal(weightd_dtype_parse(name), i);
	}
	assert_int_equal(weightd_dtype_parse("FP32"), -EINVAL);
}

static void unknown_codes_have_neither(void **state)
{
	static const unsigned codes[] = {0, DTYPE_END, 255, 256, 256 + DTYPE_F32, UINT32_MAX};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(codes); i++) {
		assert_null(dtype_name(codes[i]));
		assert_int_equal(dtype_bits(codes[i]), 0);
	}
}

static void unknown_names_are_refused(void **state)
{
	static const char *const names[] = {"",   "f32",  "F32 ",  " F32",
					    "F3", "F321", "FLOAT", "bf16"};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(names); i++)
		assert_int_equal(dtype_parse(names[i]), -EINVAL);
}

static void the_size_of_a_tensor_is_checked_arithmetic(void **state)
{
	static const struct {
		unsigned dtype;
		uint32_t n_dims;
		uint64_t shape[4];
		int r;
		uint64_t size;
	} cases[] = {
		{DTYPE_F32, 0, {0}, 0, 4},
		{DTYPE_BOOL, 0, {0}, 0, 1},
		{DTYPE_F32, 1, {0}, 0, 0},
		{DTYPE_F32, 2, {3, 5}, 0, 60},
		{DTYPE_BF16, 4, {2, 3, 5, 7}, 0, 420},
		{DTYPE_F4, 1, {2}, 0, 1},
		{DTYPE_F4, 1, {3}, -EINVAL, 0},
		{DTYPE_F4, 0, {0}, -EINVAL, 0},
		{DTYPE_F6_E2M3, 1, {4}, 0, 3},
		{DTYPE_F6_E3M2, 1, {2}, -EINVAL, 0},
		{DTYPE_F6_E3M2, 2, {0, 3}, 0, 0},
		{DTYPE_U8, 1, {(uint64_t)1 << 60}, 0, (uint64_t)1 << 60},
		{DTYPE_U8, 1, {((uint64_t)1 << 61) - 1}, 0, ((uint64_t)1 << 61) - 1},
		{DTYPE_U8, 1, {(uint64_t)1 << 61}, -EOVERFLOW, 0},
		{DTYPE_U64, 1, {((uint64_t)1 << 58) - 1}, 0, ((uint64_t)1 << 61) - 8},
		{DTYPE_U64, 1, {(uint64_t)1 << 58}, -EOVERFLOW, 0},
		{DTYPE_U8, 2, {(uint64_t)1 << 32, (uint64_t)1 << 32}, -EOVERFLOW, 0},
		{DTYPE_U8, 3, {(uint64_t)1 << 63, 4, 0}, -EOVERFLOW, 0},
		{DTYPE_U8, 3, {0, (uint64_t)1 << 63, 4}, 0, 0},
		{DTYPE_U8, 1, {UINT64_MAX}, -EOVERFLOW, 0},
		{DTYPE_Q4_K, 2, {3, 512}, 0, 864},
		{DTYPE_Q4_K, 2, {512, 3}, -EINVAL, 0},
		{DTYPE_Q4_K, 1, {0}, 0, 0},
		{DTYPE_Q4_K, 0, {0}, -EINVAL, 0},
		{DTYPE_Q4_0, 2, {0, 33}, -EINVAL, 0},
		{DTYPE_Q4_0, 2, {(uint64_t)1 << 32, (uint64_t)1 << 32}, -EOVERFLOW, 0},
		{DTYPE_Q8_K, 1, {UINT64_MAX - 255}, -EOVERFLOW, 0},
		{0, 0, {0}, -EINVAL, 0},
		{DTYPE_END, 1, {8}, -EINVAL, 0},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		uint64_t want = cases[i].r == 0 ? cases[i].size : UNTOUCHED;
		uint64_t got = UNTOUCHED;
		int r = dtype_tensor_size(cases[i].dtype, cases[i].n_dims, cases[i].shape, &got);

		if (r != cases[i].r || got != want)
			fail_msg("case %zu: wanted %d and %" PRIu64 ", got %d and %" PRIu64, i,
				 cases[i].r, want, r, got);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_code_has_its_name_and_bits),
		cmocka_unit_test(each_block_type_has_its_block_and_no_bits),
		cmocka_unit_test(other_types_have_the_fewest_elements_of_whole_bytes),
		cmocka_unit_test(the_public_codes_are_the_same),
		cmocka_unit_test(unknown_codes_have_neither),
		cmocka_unit_test(unknown_names_are_refused),
		cmocka_unit_test(the_size_of_a_tensor_is_checked_arithmetic),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

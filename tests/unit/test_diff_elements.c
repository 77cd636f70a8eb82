/*
 * Values of elements, by the differences between them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "ipc/base/num.h"
#include "ipc/dtype.h"
#include "libclient/diff/elements.h"

static struct elements compare(unsigned dtype, const void *a, const void *b, uint64_t n_bytes)
{
	struct elements e = {0};

	elements_compare(&e, dtype, a, b, n_bytes);
	return e;
}

static void assert_difference(unsigned dtype, uint64_t a, uint64_t b, double difference)
{
	uint64_t n_bytes = dtype_bits(dtype) < 8 ? 3 : dtype_bits(dtype) / 8;
	struct elements e = compare(dtype, &a, &b, n_bytes);

	if (e.n_different != 1 || e.n_unmeasured != 0 || e.max_abs != difference)
		fail_msg("%s: %#llx and %#llx: %llu differ, %llu unmeasured, by %.17g and not %.17g",
			 dtype_name(dtype), (unsigned long long)a, (unsigned long long)b,
			 (unsigned long long)e.n_different, (unsigned long long)e.n_unmeasured,
			 e.max_abs, difference);
}

static void assert_unmeasured(unsigned dtype, uint64_t a, uint64_t b)
{
	uint64_t n_bytes = dtype_bits(dtype) / 8;
	struct elements e = compare(dtype, &a, &b, n_bytes);

	if (e.n_different != 1 || e.n_unmeasured != 1 || e.max_abs != 0)
		fail_msg("%s: %#llx and %#llx have a difference of %g", dtype_name(dtype),
			 (unsigned long long)a, (unsigned long long)b, e.max_abs);
}

/* The patterns of one and two, of the smallest value above 0, and of the largest. */
static void test_values_of_each_float(void **state)
{
	static const struct {
		unsigned dtype;
		uint64_t one, two, smallest, largest;
		double smallest_value, largest_value;
	} floats[] = {
		{DTYPE_F4, 0x2, 0x4, 0x1, 0x7, 0.5, 6},
		{DTYPE_F6_E2M3, 0x08, 0x10, 0x01, 0x1f, 0.125, 7.5},
		{DTYPE_F6_E3M2, 0x0c, 0x10, 0x01, 0x1f, 0.0625, 28},
		{DTYPE_F8_E5M2, 0x3c, 0x40, 0x01, 0x7b, 0x1p-16, 57344},
		{DTYPE_F8_E4M3, 0x38, 0x40, 0x01, 0x7e, 0x1p-9, 448},
		{DTYPE_F8_E4M3FNUZ, 0x40, 0x48, 0x01, 0x7f, 0x1p-10, 240},
		{DTYPE_F8_E5M2FNUZ, 0x40, 0x44, 0x01, 0x7f, 0x1p-17, 57344},
		{DTYPE_F16, 0x3c00, 0x4000, 0x0001, 0x7bff, 0x1p-24, 65504},
		{DTYPE_BF16, 0x3f80, 0x4000, 0x0001, 0x7f7f, 0x1p-133, 0x1.fep127},
		{DTYPE_F32, 0x3f800000, 0x40000000, 0x1, 0x7f7fffff, 0x1p-149, 0x1.fffffep127},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(floats); i++) {
		unsigned dtype = floats[i].dtype, bits = dtype_bits(dtype);

		assert_difference(dtype, floats[i].one, floats[i].two, 1);
		assert_difference(dtype, floats[i].one, floats[i].one | (uint64_t)1 << (bits - 1),
				  2);
		assert_difference(dtype, 0, floats[i].smallest, floats[i].smallest_value);
		assert_difference(dtype, 0, floats[i].largest, floats[i].largest_value);
	}
	assert_difference(DTYPE_F8_E8M0, 127, 130, 7);
	assert_difference(DTYPE_F64, 0x3ff0000000000000, 0x4000000000000000, 1);
}

static void test_values_of_integers(void **state)
{
	(void)state;
	assert_difference(DTYPE_BOOL, 0, 1, 1);
	assert_difference(DTYPE_U8, 0, 255, 255);
	assert_difference(DTYPE_I8, 0x80, 0x7f, 255);
	assert_difference(DTYPE_I16, 0xffff, 1, 2);
	assert_difference(DTYPE_U16, 0xffff, 1, 65534);
	assert_difference(DTYPE_I32, 0xffffffff, 1, 2);
	assert_difference(DTYPE_U32, 0xffffffff, 1, 4294967294.);
	assert_difference(DTYPE_I64, UINT64_MAX, 1, 2);
	assert_difference(DTYPE_U64, UINT64_MAX, 0, 0x1p64);
}

static void test_what_has_no_finite_difference(void **state)
{
	(void)state;
	assert_unmeasured(DTYPE_F16, 0x7c00, 0);
	assert_unmeasured(DTYPE_F16, 0x7e00, 0);
	assert_unmeasured(DTYPE_BF16, 0xff80, 0);
	assert_unmeasured(DTYPE_F32, 0x7fc00000, 0x7fc00001);
	assert_unmeasured(DTYPE_F64, 0x7ff0000000000000, 0);
	assert_unmeasured(DTYPE_F8_E5M2, 0x7c, 0);
	assert_unmeasured(DTYPE_F8_E4M3, 0xff, 0);
	assert_unmeasured(DTYPE_F8_E4M3FNUZ, 0x80, 0);
	assert_unmeasured(DTYPE_F8_E5M2FNUZ, 0x80, 0);
	assert_unmeasured(DTYPE_F8_E8M0, 0xff, 0);
}

static void test_a_complex_number_is_one_element(void **state)
{
	const float a[] = {1, 2, 3, 4, 5, 6}, b[] = {1, 2.5, 3, 4, 6, 8};
	struct elements e = compare(DTYPE_C64, a, b, sizeof(a));

	(void)state;
	assert_int_equal(e.n_different, 2);
	assert_int_equal(e.n_unmeasured, 0);
	assert_true(e.max_abs == 2);
}

static void test_blocks_are_counted(void **state)
{
	uint8_t a[18 * 500] = {0}, b[18 * 500] = {0};
	struct elements e;

	(void)state;
	b[0] = b[17] = b[18 * 250] = b[18 * 499 + 17] = 1;
	e = compare(DTYPE_Q4_0, a, b, sizeof(a));
	assert_int_equal(e.n_different, 3);
	assert_int_equal(e.n_unmeasured, 3);
}

/* One element at a time, in a buffer of several strides, the last one not full. */
static void test_every_element_is_seen_once(void **state)
{
	static const unsigned dtypes[] = {DTYPE_U8, DTYPE_F16,     DTYPE_F64,     DTYPE_C64,
					  DTYPE_F4, DTYPE_F6_E2M3, DTYPE_F6_E3M2, DTYPE_Q6_K};
	const size_t size = 210 * 80; /* whole elements of each type */
	uint8_t *a = calloc(size, 1), *b = calloc(size, 1);

	(void)state;
	assert_non_null(a);
	assert_non_null(b);
	for (size_t i = 0; i < ARRAY_LEN(dtypes); i++)
		for (size_t at = 0; at < size; at += 997) {
			b[at] = 1;
			assert_int_equal(compare(dtypes[i], a, b, size).n_different, 1);
			b[at] = 0;
		}
	assert_int_equal(compare(DTYPE_U8, a, b, size).n_different, 0);
	memset(b, 0xff, size);
	assert_int_equal(compare(DTYPE_F4, a, b, size).n_different, 2 * size);
	assert_int_equal(compare(DTYPE_F6_E2M3, a, b, size).n_different, size / 3 * 4);
	assert_int_equal(compare(DTYPE_F64, a, b, size).n_different, size / 8);
	free(a);
	free(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_values_of_each_float),
		cmocka_unit_test(test_values_of_integers),
		cmocka_unit_test(test_what_has_no_finite_difference),
		cmocka_unit_test(test_a_complex_number_is_one_element),
		cmocka_unit_test(test_blocks_are_counted),
		cmocka_unit_test(test_every_element_is_seen_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Casts: the bits of formulas of IEEE 754, with vectors and without, also on a thread that flushes denormals. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ipc/base/num.h"
#include "ipc/dtype.h"
#include "libclient/select/cast.h"
#include "tests/unit/train_types.h"

#define N_RANDOM (1u << 18)

static enum kernel_type kernel_of(unsigned dtype)
{
	return dtype == DTYPE_F16 ? KERNEL_F16 : KERNEL_BF16;
}

static uint32_t reference_bits(uint32_t bits, unsigned to)
{
	return to == DTYPE_F32 ? bits : reference_round(float_of(bits), kernel_of(to));
}

/* Element `i` of `n` as the result of all implementations, and `bits` as wanted. */
static void check_all(const void *from, unsigned from_dtype, unsigned to, size_t n,
		      const uint32_t *want)
{
	const size_t size = dtype_bits(to) / 8, from_size = dtype_bits(from_dtype) / 8;
	uint8_t *results[2] = {malloc(n * size + 1), malloc(n * size + 1)};

	/* At an odd address. */
	cast_elements(results[0] + 1, to, from, from_dtype, n);
	cast_elements_portable(results[1] + 1, to, from, from_dtype, n);
	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < 2; k++) {
			uint32_t is = 0;

			memcpy(&is, results[k] + 1 + i * size, size);
			if (is != want[i]) {
				uint64_t was = 0;

				memcpy(&was, (const char *)from + i * from_size, from_size);
				fail_msg("%s %#llx as %s is %#x, not %#x (%s)",
					 dtype_name(from_dtype), (unsigned long long)was,
					 dtype_name(to), is, want[i], k ? "portable" : "vectors");
			}
		}
	free(results[0]);
	free(results[1]);
}

static const unsigned targets[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};

static void check_halves(unsigned from_dtype)
{
	static uint16_t from[1 << 16];
	static uint32_t want[1 << 16];

	for (size_t k = 0; k < ARRAY_LEN(targets); k++) {
		for (size_t i = 0; i < ARRAY_LEN(from); i++) {
			from[i] = (uint16_t)i;
			want[i] = reference_bits(bits_of(reference_widen(from[i],
									 kernel_of(from_dtype))),
						 targets[k]);
		}
		check_all(from, from_dtype, targets[k], ARRAY_LEN(from), want);
	}
}

static void all_16_bit_patterns(void **state)
{
	(void)state;
	check_halves(DTYPE_F16);
	check_halves(DTYPE_BF16);
}

/* Each exponent, around each place where a digit is cut off, and random bits. */
static size_t make_floats(uint32_t *ret, size_t max)
{
	static const uint32_t digits[] = {0,        1,        0xfff,    0x1000,   0x1001,
					  0x7fff,   0x8000,   0x8001,   0x17fff,  0x18000,
					  0x1fff,   0x2000,   0x2fff,   0x3000,   0x3001,
					  0x200000, 0x400000, 0x7fefff, 0x7ff000, 0x7f7fff,
					  0x7f8000, 0x7fffff};
	size_t n = 0;

	for (uint32_t exponent = 0; exponent < 256; exponent++)
		for (size_t i = 0; i < ARRAY_LEN(digits); i++)
			for (uint32_t sign = 0; sign < 2; sign++)
				ret[n++] = sign << 31 | exponent << 23 | digits[i];
	srand48(1);
	while (n < max)
		ret[n++] = (uint32_t)mrand48();
	return n;
}

static void check_floats(void)
{
	uint32_t *from = malloc(N_RANDOM * sizeof(*from)), *want = malloc(N_RANDOM * sizeof(*want));
	size_t n = make_floats(from, N_RANDOM);

	for (size_t k = 0; k < ARRAY_LEN(targets); k++) {
		for (size_t i = 0; i < n; i++)
			want[i] = reference_bits(from[i], targets[k]);
		check_all(from, DTYPE_F32, targets[k], n, want);
	}
	free(from);
	free(want);
}

static void floats(void **state)
{
	(void)state;
	check_floats();
}

/* As a float, and then as that float; the processor rounds the double. */
static void check_doubles(const double *from, size_t n, const uint32_t *as_float)
{
	uint32_t *want = malloc(n * sizeof(*want));

	for (size_t k = 0; k < ARRAY_LEN(targets); k++) {
		for (size_t i = 0; i < n; i++)
			want[i] = reference_bits(as_float[i], targets[k]);
		check_all(from, DTYPE_F64, targets[k], n, want);
	}
	free(want);
}

static size_t make_doubles(double *from, uint32_t *as_float, size_t max)
{
	uint32_t *bits = malloc(max * sizeof(*bits));
	size_t n = make_floats(bits, max);

	for (size_t i = 0; i < n; i++) {
		double x = (double)float_of(bits[i]);

		/* Beside the float, halfway to the next one, and beside that; NaN as they are. */
		if (isfinite(x) && i % 4 == 1)
			x = nextafter(x, i % 8 == 1 ? INFINITY : -INFINITY);
		else if (isfinite(x) && i % 4 == 2)
			x = (x + (double)float_of(bits[i] ^ 1)) / 2;
		else if (isfinite(x) && i % 4 == 3)
			x *= 1 + 0x1p-25 * (1 + (double)(i % 3));
		from[i] = x;
		as_float[i] = bits_of((float)x) | (isnan(x) ? 0x400000 : 0);
	}
	free(bits);
	return n;
}

static void doubles(void **state)
{
	double *from = malloc(N_RANDOM * sizeof(*from));
	uint32_t *as_float = malloc(N_RANDOM * sizeof(*as_float));
	size_t n = make_doubles(from, as_float, N_RANDOM);

	(void)state;
	check_doubles(from, n, as_float);
	free(from);
	free(as_float);
}

/* torch.set_flush_denormal() makes such threads, and those that they start are like them. */
static void a_thread_that_flushes_denormals(void **state)
{
#ifdef __x86_64__
	enum {
		N = 1 << 14,
		FLUSH = 0x8040
	};
	double *from = malloc(N * sizeof(*from));
	uint32_t *floats_in = malloc(N * sizeof(*floats_in)), *want = malloc(N * sizeof(*want));
	uint8_t *to = malloc(N * sizeof(uint32_t));
	const unsigned before = __builtin_ia32_stmxcsr();
	size_t n = make_doubles(from, want, N);

	(void)state;
	__builtin_ia32_ldmxcsr(before | FLUSH);
	cast_elements(to, DTYPE_F32, from, DTYPE_F64, n);
	__builtin_ia32_ldmxcsr(before);
	assert_memory_equal(to, want, n * sizeof(uint32_t));
	n = make_floats(floats_in, N);
	for (size_t k = 1; k < ARRAY_LEN(targets); k++) {
		__builtin_ia32_ldmxcsr(before | FLUSH);
		cast_elements(to, targets[k], floats_in, DTYPE_F32, n);
		__builtin_ia32_ldmxcsr(before);
		for (size_t i = 0; i < n; i++) {
			uint16_t is;

			memcpy(&is, to + i * sizeof(is), sizeof(is));
			assert_int_equal(is, reference_bits(floats_in[i], targets[k]));
		}
	}
	free(from);
	free(floats_in);
	free(want);
	free(to);
#else
	(void)state;
	skip();
#endif
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(all_16_bit_patterns),
		cmocka_unit_test(floats),
		cmocka_unit_test(doubles),
		cmocka_unit_test(a_thread_that_flushes_denormals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

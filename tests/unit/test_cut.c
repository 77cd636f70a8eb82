/* Cuts: any range of the result is what a byte after byte, an element after element, makes of the file. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "ipc/base/num.h"
#include "ipc/dtype.h"
#include "libclient/select/cast.h"
#include "libclient/select/cut.h"

#define OFFSET 37 /* of the tensor in the file */

static struct file make_file(uint8_t *bytes, size_t size)
{
	struct file f = {.path = (char *)"tensors", .fd = memfd_create("tensors", MFD_CLOEXEC)};

	srand48(7);
	for (size_t i = 0; i < size; i++)
		bytes[i] = (uint8_t)mrand48();
	assert_int_equal(write(f.fd, bytes, size), (ssize_t)size);
	return f;
}

/* The whole result, the slow way. */
static uint8_t *make_result(const struct cut *c, const uint8_t *bytes, uint64_t n_rows,
			    uint64_t *ret_size)
{
	const uint64_t n = n_rows * c->row;
	uint8_t *taken = malloc(n), *result = malloc(4 * n);
	uint64_t at = 0;

	for (uint64_t row = 0; row < n_rows; row++)
		for (unsigned p = 0; p < c->n_parts; p++)
			for (uint64_t i = 0; i < c->parts[p].size; i++)
				taken[at++] =
					bytes[OFFSET + row * c->stride + c->parts[p].offset + i];
	*ret_size = cut_size(c, n);
	if (c->from == c->to)
		memcpy(result, taken, n);
	else
		for (uint64_t i = 0, e = dtype_bits(c->from) / 8; i < n / e; i++)
			cast_elements(result + i * dtype_bits(c->to) / 8, c->to, taken + i * e,
				      c->from, 1);
	free(taken);
	return result;
}

/* Pieces of a tensor of `n` bytes, of any sizes that elements allow, make the same result. */
static void check_scatter(const struct cut *c, const uint8_t *tensor, uint64_t n,
			  const uint8_t *want, uint64_t n_want)
{
	const uint64_t unit = c->from == c->to ? 1 : dtype_bits(c->from) / 8;
	uint8_t *is = calloc(1, n_want + 1);

	for (uint64_t at = 0, size; at < n; at += size) {
		size = (uint64_t)(1 + lrand48() % 5000) * unit;
		if (size > n - at)
			size = n - at;
		cut_scatter(c, tensor + at, at, size, is);
	}
	assert_memory_equal(is, want, n_want);
	assert_int_equal(is[n_want], 0);
	free(is);
}

static void check(const struct cut *c, uint64_t n_rows)
{
	const size_t size = OFFSET + n_rows * c->stride; /* the file ends with the tensor */
	uint8_t *bytes = malloc(size), *want, *is;
	struct file f = make_file(bytes, size);
	struct sentence s;
	uint64_t n_want;

	want = make_result(c, bytes, n_rows, &n_want);
	is = malloc(n_want + 1);
	for (unsigned i = 0; i < 200; i++) {
		uint64_t at = i == 0 ? 0 : (uint64_t)lrand48() % n_want;
		uint64_t n = i == 0 ? n_want : (uint64_t)lrand48() % (n_want - at + 1);

		if (i % 2)
			n %= 40;
		is[n] = 0xa5;
		if (cut_read(c, &f, OFFSET, at, n, is, &s) < 0)
			fail_msg("%s", s.text);
		if (memcmp(is, want + at, n) != 0)
			fail_msg("other bytes at %llu, %llu of them", (unsigned long long)at,
				 (unsigned long long)n);
		assert_int_equal(is[n], 0xa5);
	}
	check_scatter(c, bytes + OFFSET, n_rows * c->stride, want, n_want);
	(void)close(f.fd);
	free(bytes);
	free(want);
	free(is);
}

static void casts(void **state)
{
	static const unsigned types[] = {DTYPE_F64, DTYPE_F32, DTYPE_F16, DTYPE_BF16};

	(void)state;
	for (size_t from = 0; from < ARRAY_LEN(types); from++)
		for (size_t to = 1; to < ARRAY_LEN(types); to++) {
			struct cut c = cut_of_cast(types[from], types[to],
						   dtype_bits(types[from]) / 8 * 60001);

			if (from != to)
				check(&c, 1);
		}
}

static void parts_of_rows(void **state)
{
	static const struct cut cuts[] = {
		{.stride = 24, .row = 6, .n_parts = 1, .parts = {{6, 6}}},
		{.stride = 8192, .row = 4096, .n_parts = 1, .parts = {{4096, 4096}}},
		{.stride = 200000, .row = 100000, .n_parts = 1, .parts = {{0, 100000}}},
		{.stride = 96, .row = 24, .n_parts = 3, .parts = {{8, 8}, {40, 8}, {72, 8}}},
		{.stride = 40000,
		 .row = 9024,
		 .n_parts = 3,
		 .parts = {{8, 5000}, {20000, 4000}, {39976, 24}}},
		{.stride = 70000, .row = 2, .n_parts = 1, .parts = {{69998, 2}}},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cuts); i++) {
		struct cut c = cuts[i];

		c.from = c.to = DTYPE_U8;
		check(&c, 7);
		c.from = DTYPE_BF16;
		c.to = DTYPE_F32;
		check(&c, 7);
		c.from = DTYPE_F32;
		c.to = DTYPE_F16;
		if (c.row % 4 == 0)
			check(&c, 5);
	}
}

static void a_file_that_ends_early_is_named(void **state)
{
	const struct cut c = cut_of_cast(DTYPE_F32, DTYPE_BF16, 4096);
	uint8_t bytes[OFFSET + 4095], to[2048];
	struct file f = make_file(bytes, sizeof(bytes));
	struct sentence s;

	(void)state;
	assert_true(cut_read(&c, &f, OFFSET, 0, sizeof(to), to, &s) < 0);
	assert_non_null(strstr(s.text, "tensors"));
	(void)close(f.fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(casts),
		cmocka_unit_test(parts_of_rows),
		cmocka_unit_test(a_file_that_ends_early_is_named),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

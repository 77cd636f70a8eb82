/* Numbers: every accepted spelling next to one that is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <inttypes.h>

#include "ipc/base/num.h"

#define UNTOUCHED 0x5a5a5a5a5a5a5a5au

struct spelling {
	const char *text;
	int r;
	uint64_t value;
};

static void check_all(int (*parse)(const char *, uint64_t *), const struct spelling *s, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint64_t want = s[i].r == 0 ? s[i].value : UNTOUCHED;
		uint64_t got = UNTOUCHED;
		int r = parse(s[i].text, &got);

		if (r != s[i].r || got != want)
			fail_msg("'%s': wanted %d and %" PRIu64 ", got %d and %" PRIu64, s[i].text,
				 s[i].r, want, r, got);
	}
}

static void a_size_has_a_suffix_of_powers_of_1024(void **state)
{
	static const struct spelling spellings[] = {
		{"0", 0, 0},
		{"4096", 0, 4096},
		{"64K", 0, 64 * KIB},
		{"64k", 0, 64 * KIB},
		{"64KB", 0, 64 * KIB},
		{"64KiB", 0, 64 * KIB},
		{"3M", 0, 3 * MIB},
		{"1.5G", 0, 1536 * MIB},
		{"0.5K", 0, 512},
		{"2T", 0, 2048 * GIB},
		{"4503599627370497", 0, 4503599627370497},
		{"99999999999T", -ERANGE, 0},
		{"99999999999999999999", -ERANGE, 0},
		{"", -EINVAL, 0},
		{"K", -EINVAL, 0},
		{"-1", -EINVAL, 0},
		{"+1K", -EINVAL, 0},
		{" 1K", -EINVAL, 0},
		{"1K ", -EINVAL, 0},
		{"1 K", -EINVAL, 0},
		{"1KK", -EINVAL, 0},
		{"1Ki", -EINVAL, 0},
		{"1KiBs", -EINVAL, 0},
		{"1P", -EINVAL, 0},
		{"1.2.3", -EINVAL, 0},
		{".5G", -EINVAL, 0},
		{"inf", -EINVAL, 0},
		{"nan", -EINVAL, 0},
		{"0x10", -EINVAL, 0},
		{"0x1p3K", -EINVAL, 0},
		{"1e3", -EINVAL, 0},
	};

	(void)state;
	check_all(num_parse_size, spellings, ARRAY_LEN(spellings));
}

static void a_number_is_digits_of_its_base_and_nothing_else(void **state)
{
	static const char *const wrong[] = {
		"", " 1", "+1", "-1", "1 ", "8", "18446744073709551616"};
	uint64_t n = 5;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
		assert_int_equal(num_parse(wrong[i], 8, &n), -EINVAL);
	assert_int_equal(n, 5);
	assert_int_equal(num_parse("0640", 8, &n), 0);
	assert_int_equal(n, 0640);
	assert_int_equal(num_parse("18446744073709551615", 10, &n), 0);
	assert_true(n == UINT64_MAX);
}

static void sizes_for_a_person_are_powers_of_1000(void **state)
{
	static const struct {
		uint64_t bytes;
		const char *text;
	} sizes[] = {
		{0, "0 B"},
		{1, "1 B"},
		{999, "999 B"},
		{1000, "1.0 kB"},
		{1049, "1.0 kB"},
		{1050, "1.1 kB"},
		{999949, "999.9 kB"},
		{999950, "1.0 MB"},
		{90900000, "90.9 MB"},
		{16100000000, "16.1 GB"},
		{UINT64_MAX, "18.4 EB"},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		char buf[NUM_SIZE_MAX];

		assert_string_equal(num_format_size(buf, sizes[i].bytes), sizes[i].text);
	}
}

static void aligning_up_reaches_the_next_multiple_or_says_that_there_is_none(void **state)
{
	uint64_t got = UNTOUCHED;

	(void)state;
	assert_true(num_align_up(0, 256, &got));
	assert_int_equal(got, 0);
	assert_true(num_align_up(1, 256, &got));
	assert_int_equal(got, 256);
	assert_true(num_align_up(256, 256, &got));
	assert_int_equal(got, 256);
	assert_true(num_align_up(7, 1, &got));
	assert_int_equal(got, 7);
	assert_true(num_align_up(UINT64_MAX - 255, 256, &got));
	assert_int_equal(got, UINT64_MAX - 255);
	got = UNTOUCHED;
	assert_false(num_align_up(UINT64_MAX - 254, 256, &got));
	assert_int_equal(got, UNTOUCHED);
}

static void powers_of_two_have_one_bit(void **state)
{
	(void)state;
	assert_false(num_is_power_of_two(0));
	assert_false(num_is_power_of_two(3));
	assert_false(num_is_power_of_two(UINT64_MAX));
	for (unsigned i = 0; i < 64; i++)
		assert_true(num_is_power_of_two((uint64_t)1 << i));
}

static void the_clock_does_not_go_back(void **state)
{
	uint64_t before = num_now_ns();

	(void)state;
	for (int i = 0; i < 1000; i++) {
		uint64_t now = num_now_ns();

		assert_in_range(now, before, UINT64_MAX);
		before = now;
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_size_has_a_suffix_of_powers_of_1024),
		cmocka_unit_test(a_number_is_digits_of_its_base_and_nothing_else),
		cmocka_unit_test(sizes_for_a_person_are_powers_of_1000),
		cmocka_unit_test(aligning_up_reaches_the_next_multiple_or_says_that_there_is_none),
		cmocka_unit_test(powers_of_two_have_one_bit),
		cmocka_unit_test(the_clock_does_not_go_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

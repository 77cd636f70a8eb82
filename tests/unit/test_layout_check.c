/*
 * The check and the look-ups on corrupted layouts. After each change the hash is corrected, so that
 * it is never the hash that catches it; and the cost of a check.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "ipc/digest.h"
#include "tests/unit/image.h"
#include "tests/unit/long_form.h"

/* --- Images with one wrong field ------------------------------------------------------------------ */

#define WHY_HEADER "header is not that of a layout"
#define WHY_NAME "name is not 1 to 1024 bytes"
#define WHY_TWICE "is used twice, or the name index is broken"
#define WHY_TIED "not an earlier, untied one"
#define WHY_DIFFERS "differs from the tensor it is tied to"
#define WHY_ALIGNED "not aligned"
#define WHY_OVERLAPS "overlaps the tensor before it"
#define WHY_OUTSIDE "ends outside the buffer"
#define WHY_SHAPE "shape lies outside"
#define WHY_NO_BYTES "give no number of bytes"
#define WHY_BYTES "size is not that of its dtype and shape"
#define WHY_ROLE "role is unknown"
#define WHY_UNIT "unit lies outside"
#define WHY_UNIT_NAME "a unit's name is not"
#define WHY_PADDING "padding is not zero"
#define WHY_END "not where its last tensor ends"

#define HEADER(member)                                                                             \
	offsetof(struct layout_header, member), sizeof(((struct layout_header *)0)->member)
#define TENSORS_AT sizeof(struct layout_header)
#define TENSOR(i, member)                                                                          \
	TENSORS_AT + (i) * sizeof(struct layout_tensor) + offsetof(struct layout_tensor, member),  \
		sizeof(((struct layout_tensor *)0)->member)
#define DIMS_AT (TENSORS_AT + N_SAMPLE * sizeof(struct layout_tensor))
#define DIM(i) DIMS_AT + (i) * sizeof(uint64_t), sizeof(uint64_t)
#define UNITS_AT (DIMS_AT + N_DIMS * sizeof(uint64_t))
#define UNIT(i, member)                                                                            \
	UNITS_AT + (i) * sizeof(struct layout_unit) + offsetof(struct layout_unit, member),        \
		sizeof(((struct layout_unit *)0)->member)

#define HUGE ((uint64_t)1 << 63)

static const struct {
	const char *what;
	uint64_t place, size; /* place and size of the field */
	uint64_t value;
	const char *why;
	uint32_t at;
} corruptions[] = {
	{"magic", HEADER(magic), 0x5500000000000000, WHY_HEADER, 0},
	{"no magic", HEADER(magic), 0, WHY_HEADER, 0},
	{"abi 0", HEADER(abi), 0, WHY_HEADER, 0},
	{"next abi", HEADER(abi), LAYOUT_ABI + 1, WHY_HEADER, 0},
	{"header pad", HEADER(pad), 1, WHY_HEADER, 0},
	{"header pad2", HEADER(pad2), 0x80000000, WHY_HEADER, 0},
	{"no total size", HEADER(total_size), 0, WHY_HEADER, 0},
	{"huge total size", HEADER(total_size), UINT64_MAX, WHY_HEADER, 0},
	{"data size past the limit", HEADER(data_size), DIGEST_DATA_MAX + 1, WHY_HEADER, 0},
	{"huge data size", HEADER(data_size), UINT64_MAX, WHY_HEADER, 0},
	{"data size at the limit", HEADER(data_size), DIGEST_DATA_MAX, WHY_END, 0},
	{"data size one more", HEADER(data_size), 6144 + 256, WHY_END, 0},
	{"data size not aligned", HEADER(data_size), 6143, WHY_END, 0},
	{"data size one less", HEADER(data_size), 5888, WHY_OUTSIDE, LAST},
	{"no data", HEADER(data_size), 0, WHY_OUTSIDE, A_WEIGHT},
	{"no strings", HEADER(strings_size), 0, WHY_HEADER, 0},
	{"huge strings", HEADER(strings_size), UINT64_MAX, WHY_HEADER, 0},
	{"strings that overflow", HEADER(strings_size), UINT64_MAX - 500, WHY_HEADER, 0},
	{"no alignment", HEADER(alignment), 0, WHY_HEADER, 0},
	{"finer alignment", HEADER(alignment), 32, WHY_END, 0},
	{"alignment too large", HEADER(alignment), 4 << 20, WHY_HEADER, 0},
	{"alignment 2^31", HEADER(alignment), 0x80000000, WHY_HEADER, 0},
	{"alignment no power", HEADER(alignment), 192, WHY_HEADER, 0},
	{"coarser alignment", HEADER(alignment), 512, WHY_ALIGNED, A_BIAS},
	{"no tensors", HEADER(n_tensors), 0, WHY_HEADER, 0},
	{"too many tensors", HEADER(n_tensors), UINT32_MAX, WHY_HEADER, 0},
	{"one tensor less", HEADER(n_tensors), N_SAMPLE - 1, WHY_HEADER, 0},
	{"no dims", HEADER(n_dims), 0, WHY_HEADER, 0},
	{"too many dims", HEADER(n_dims), UINT32_MAX, WHY_HEADER, 0},
	{"no units", HEADER(n_units), 0, WHY_HEADER, 0},
	{"too many units", HEADER(n_units), UINT32_MAX, WHY_HEADER, 0},
	{"no buckets", HEADER(n_buckets), 0, WHY_HEADER, 0},
	{"buckets no power", HEADER(n_buckets), 15, WHY_HEADER, 0},
	{"too few buckets", HEADER(n_buckets), 8, WHY_HEADER, 0},
	{"too many buckets", HEADER(n_buckets), 0x80000000, WHY_HEADER, 0},

	{"offset not aligned", TENSOR(B_WEIGHT, offset), 1536 + 64, WHY_ALIGNED, B_WEIGHT},
	{"offset odd", TENSOR(A_WEIGHT, offset), 1, WHY_ALIGNED, A_WEIGHT},
	{"overlap of one byte", TENSOR(A_BIAS, offset), 1024, WHY_OVERLAPS, A_BIAS},
	{"overlap with the first", TENSOR(LAST, offset), 0, WHY_OVERLAPS, LAST},
	{"overlap by a later one", TENSOR(A_WEIGHT, offset), 256, WHY_OVERLAPS, A_BIAS},
	{"out of order", TENSOR(STEP, offset), 1280, WHY_OVERLAPS, STEP},
	{"offset at the end", TENSOR(LAST, offset), 6144, WHY_OUTSIDE, LAST},
	{"offset 2^63", TENSOR(LAST, offset), HUGE, WHY_OUTSIDE, LAST},
	{"offset + size is 2^64", TENSOR(B_WEIGHT, offset), UINT64_MAX - 4095, WHY_OUTSIDE, B_WEIGHT},
	{"offset + size wraps", TENSOR(B_WEIGHT, offset), UINT64_MAX - 255, WHY_OUTSIDE, B_WEIGHT},
	{"an empty tensor outside", TENSOR(EMPTY, offset), 6400, WHY_OUTSIDE, EMPTY},
	{"an empty tensor at 2^64", TENSOR(EMPTY, offset), UINT64_MAX - 255, WHY_OUTSIDE, EMPTY},
	{"size one more", TENSOR(A_BIAS, n_bytes), 13, WHY_BYTES, A_BIAS},
	{"no size", TENSOR(A_BIAS, n_bytes), 0, WHY_BYTES, A_BIAS},
	{"size 2^64", TENSOR(LAST, n_bytes), UINT64_MAX, WHY_BYTES, LAST},

	{"name outside", TENSOR(A_BIAS, name), 1 << 20, WHY_NAME, A_BIAS},
	{"name 2^64", TENSOR(A_BIAS, name), UINT64_MAX, WHY_NAME, A_BIAS},
	{"name is the end of another", TENSOR(LAST, name), 9, WHY_TWICE, LAST},
	{"no name", TENSOR(A_BIAS, name_size), 0, WHY_NAME, A_BIAS},
	{"name too short", TENSOR(A_BIAS, name_size), 5, WHY_NAME, A_BIAS},
	{"name over the next one", TENSOR(A_BIAS, name_size), 8, WHY_NAME, A_BIAS},
	{"name outside by its size", TENSOR(A_BIAS, name_size), UINT32_MAX, WHY_NAME, A_BIAS},

	{"dims outside", TENSOR(LAST, dims), N_DIMS, WHY_SHAPE, LAST},
	{"dims half outside", TENSOR(EMPTY, dims), N_DIMS - 1, WHY_SHAPE, EMPTY},
	{"dims 2^32", TENSOR(LAST, dims), UINT32_MAX, WHY_SHAPE, LAST},
	{"dims of another", TENSOR(A_BIAS, dims), 1, WHY_BYTES, A_BIAS},
	{"rank 33", TENSOR(A_WEIGHT, n_dims), LAYOUT_DIMS_MAX + 1, WHY_SHAPE, A_WEIGHT},
	{"rank 255", TENSOR(A_WEIGHT, n_dims), 255, WHY_SHAPE, A_WEIGHT},
	{"rank past the last dim", TENSOR(LAST, n_dims), 2, WHY_SHAPE, LAST},
	{"no rank", TENSOR(A_WEIGHT, n_dims), 0, WHY_BYTES, A_WEIGHT},
	{"another dim", DIM(0), 4, WHY_BYTES, A_WEIGHT},
	{"dim 2^63", DIM(0), HUGE, WHY_NO_BYTES, A_WEIGHT},
	{"dim 2^64", DIM(2), UINT64_MAX, WHY_NO_BYTES, A_BIAS},
	{"dims that overflow to right", DIM(0), ((uint64_t)1 << 59) + 3, WHY_NO_BYTES, A_WEIGHT},
	{"half a byte", DIM(7), 5, WHY_NO_BYTES, LAST},

	{"no dtype", TENSOR(A_BIAS, dtype), 0, WHY_NO_BYTES, A_BIAS},
	{"dtype past the last", TENSOR(A_BIAS, dtype), DTYPE_END, WHY_NO_BYTES, A_BIAS},
	{"dtype 255", TENSOR(A_BIAS, dtype), 255, WHY_NO_BYTES, A_BIAS},
	{"smaller dtype", TENSOR(A_BIAS, dtype), DTYPE_F16, WHY_BYTES, A_BIAS},
	{"no role", TENSOR(A_BIAS, role), 0, WHY_ROLE, A_BIAS},
	{"role past the last", TENSOR(A_BIAS, role), LAYOUT_ROLE_END, WHY_ROLE, A_BIAS},
	{"role 255", TENSOR(HEAD, role), 255, WHY_ROLE, HEAD},
	{"first byte of padding", TENSOR(A_BIAS, pad[0]), 1, WHY_PADDING, A_BIAS},
	{"last byte of padding", TENSOR(LAST, pad[4]), 0x80, WHY_PADDING, LAST},
	{"unit outside", TENSOR(A_BIAS, unit), N_UNITS, WHY_UNIT, A_BIAS},
	{"unit 2^32 - 2", TENSOR(A_BIAS, unit), LAYOUT_NONE - 1, WHY_UNIT, A_BIAS},

	{"tied to itself", TENSOR(HEAD, tied_to), HEAD, WHY_TIED, HEAD},
	{"tied to a later one", TENSOR(HEAD, tied_to), LAST, WHY_TIED, HEAD},
	{"tied to one that is tied", TENSOR(HEAD_AGAIN, tied_to), HEAD, WHY_TIED, HEAD_AGAIN},
	{"tied outside", TENSOR(HEAD, tied_to), N_SAMPLE, WHY_TIED, HEAD},
	{"tied far outside", TENSOR(HEAD, tied_to), LAYOUT_NONE - 1, WHY_TIED, HEAD},
	{"the first is tied", TENSOR(A_WEIGHT, tied_to), 0, WHY_TIED, A_WEIGHT},
	{"tied to another", TENSOR(HEAD, tied_to), B_WEIGHT, WHY_DIFFERS, HEAD},
	{"tied with its own bytes", TENSOR(A_BIAS, tied_to), A_WEIGHT, WHY_DIFFERS, A_BIAS},
	{"tied with another offset", TENSOR(HEAD, offset), 256, WHY_DIFFERS, HEAD},
	{"tied with another dtype", TENSOR(HEAD, dtype), DTYPE_I32, WHY_DIFFERS, HEAD},
	{"tied no more", TENSOR(HEAD, tied_to), LAYOUT_NONE, WHY_OVERLAPS, HEAD},

	{"unit pad", UNIT(UNIT_B, pad), 1, WHY_UNIT_NAME, UNIT_B},
	{"no unit name", UNIT(UNIT_B, name_size), 0, WHY_UNIT_NAME, UNIT_B},
	{"unit name too long", UNIT(UNIT_HEAD, name_size), 5, WHY_UNIT_NAME, UNIT_HEAD},
	{"unit name outside by its size", UNIT(UNIT_A, name_size), UINT32_MAX, WHY_UNIT_NAME, UNIT_A},
	{"unit name outside", UNIT(UNIT_A_AGAIN, name), 1 << 20, WHY_UNIT_NAME, UNIT_A_AGAIN},
	{"unit name 2^64", UNIT(UNIT_A_AGAIN, name), UINT64_MAX, WHY_UNIT_NAME, UNIT_A_AGAIN},
};

static void each_field_that_is_wrong_is_refused_with_its_reason(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(corruptions); i++) {
		cleanup(image_free) struct image image = sample();

		assert_in_range(corruptions[i].place + corruptions[i].size, 0, image.size);
		memcpy(image.bytes + corruptions[i].place, &corruptions[i].value,
		       corruptions[i].size);
		make_hash(&image);
		refuse(&image, corruptions[i].what, corruptions[i].at, corruptions[i].why);
		use_everything(&image);
	}
}

static void any_field_may_have_any_interesting_value_and_nothing_is_read_outside(void **state)
{
	static const uint64_t values[] = {
		0,          1,          2,        0x7f, 0x80,       0xff,
		0x7fff,     0xffff,     N_SAMPLE, 33,   0x7fffffff, 0x80000000,
		0xffffffff, 0xfffffffe, HUGE - 1, HUGE, UINT64_MAX, UINT64_MAX - 255};
	cleanup(image_free) struct image image = sample();

	(void)state;
	for (uint64_t place = 0; place < image.size; place += 4)
		for (size_t i = 0; i < ARRAY_LEN(values); i++)
			for (uint64_t n = 1; n <= 8 && place + n <= image.size; n *= 2) {
				char old[8];

				memcpy(old, image.bytes + place, n);
				memcpy(image.bytes + place, &values[i], n);
				use_everything(&image);
				make_hash(&image);
				if (check(&image).r == 0)
					check_promises(&image);
				memcpy(image.bytes + place, old, n);
			}
	make_hash(&image);
	accept(&image, "the image as it was");
}

static void a_rank_past_the_limit_is_refused_where_its_dims_are_there(void **state)
{
	cleanup(weightd_layout_freep) struct weightd_layout *l = new_layout(0);
	uint64_t shape[LAYOUT_DIMS_MAX];

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(shape); i++)
		shape[i] = 1;
	for (int i = 0; i < 2; i++)
		assert_int_equal(weightd_layout_add(l, i ? "a" : "b", WEIGHTD_U8, LAYOUT_DIMS_MAX,
						    shape, WEIGHTD_PARAM, NULL),
				 0);
	cleanup(image_free) struct image image = build(l);

	accept(&image, "rank 32");
	tensor_of(&image, 0)->n_dims = LAYOUT_DIMS_MAX + 1;
	make_hash(&image);
	refuse(&image, "rank 33", 0, WHY_SHAPE);
}

static void a_tied_tensor_has_as_many_bytes(void **state)
{
	cleanup(image_free) struct image image = sample();

	(void)state;
	tensor_of(&image, HEAD)->n_dims = 1; /* 3 of 3 x 100 */
	tensor_of(&image, HEAD)->n_bytes = 12;
	make_hash(&image);
	refuse(&image, "a part of a tensor", HEAD, WHY_DIFFERS);
}

/* The sizes are in the header, so that a cut image is cut where it matters. */
static void an_image_of_another_size_is_refused(void **state)
{
	cleanup(image_free) struct image whole = sample();
	struct layout l;

	(void)state;
	for (uint64_t size = 0; size < whole.size; size++) {
		cleanup(image_free) struct image cut = {.bytes = malloc(size ? size : 1),
							.size = size};

		assert_non_null(cut.bytes);
		memcpy(cut.bytes, whole.bytes, size);
		assert_int_equal(layout_open(cut.bytes, size, &l), -EBADMSG);
		if (size < sizeof(*l.header))
			continue;
		header_of(&cut)->total_size = size;
		assert_int_equal(layout_open(cut.bytes, size, &l), -EBADMSG);
		refuse(&cut, "a cut image", 0, WHY_HEADER);
	}
	whole.bytes = realloc(whole.bytes, whole.size + 1);
	assert_non_null(whole.bytes);
	whole.bytes[whole.size] = '\0';
	assert_int_equal(layout_open(whole.bytes, whole.size + 1, &l), -EBADMSG);
	header_of(&whole)->total_size++;
	assert_int_equal(layout_open(whole.bytes, whole.size + 1, &l), -EBADMSG);
	header_of(&whole)->strings_size++; /* now the size is right, and the hash is not */
	assert_int_equal(layout_open(whole.bytes, whole.size + 1, &l), 0);
}

static void buckets_are_a_power_of_two_and_twice_the_tensors(void **state)
{
	static const struct {
		uint32_t n_tensors, n_buckets;
		int r;
	} cases[] = {
		{1, 2, 0},        {1, 4, 0},        {3, 8, 0},        {4, 8, 0},
		{0, 0, -EBADMSG}, {0, 2, -EBADMSG}, {1, 0, -EBADMSG}, {1, 1, -EBADMSG},
		{1, 3, -EBADMSG}, {1, 6, -EBADMSG}, {2, 2, -EBADMSG}, {3, 4, -EBADMSG},
		{5, 8, -EBADMSG},
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct layout_header h = {
			.magic = LAYOUT_MAGIC,
			.abi = LAYOUT_ABI,
			.alignment = LAYOUT_ALIGNMENT_FLAT_MIN,
			.n_tensors = cases[i].n_tensors,
			.n_buckets = cases[i].n_buckets,
		};
		char image[1024] __attribute__((aligned(8))) = {0};
		struct layout l;
		int r;

		assert_true(layout_image_size(&h, &h.total_size));
		assert_in_range(h.total_size, 0, sizeof(image));
		memcpy(image, &h, sizeof(h));
		r = layout_open(image, h.total_size, &l);
		if (r != cases[i].r)
			fail_msg("%u tensors in %u buckets: wanted %d, got %d", h.n_tensors,
				 h.n_buckets, cases[i].r, r);
	}
}

static void sizes_of_images_do_not_overflow(void **state)
{
	struct layout_header h = {.n_tensors = LAYOUT_TENSORS_MAX, .n_buckets = 1u << 23};
	uint64_t size = 77;

	(void)state;
	assert_true(layout_image_size(&h, &size));
	assert_int_equal(size, 80 + 48 * (uint64_t)LAYOUT_TENSORS_MAX + 4 * ((uint64_t)1 << 23));
	h.strings_size = LAYOUT_SIZE_MAX - size;
	assert_true(layout_image_size(&h, &size));
	assert_int_equal(size, LAYOUT_SIZE_MAX);
	h.strings_size++;
	size = 77;
	assert_false(layout_image_size(&h, &size));
	h.strings_size = UINT64_MAX;
	assert_false(layout_image_size(&h, &size));
	h = (struct layout_header){.n_tensors = LAYOUT_TENSORS_MAX + 1};
	assert_false(layout_image_size(&h, &size));
	h = (struct layout_header){.n_units = LAYOUT_UNITS_MAX + 1};
	assert_false(layout_image_size(&h, &size));
	h = (struct layout_header){.n_dims = UINT32_MAX, .n_buckets = UINT32_MAX};
	assert_false(layout_image_size(&h, &size));
	assert_int_equal(size, 77);
}

/* --- Names ---------------------------------------------------------------------------------------- */

static const struct {
	const char *text;
	size_t size;
	bool ok;
} names[] = {
	{"a", 1, true},
	{"\x01", 1, true},
	{"\x7f", 1, true},
	{"\xc2\x80", 2, true},
	{"\xdf\xbf", 2, true},
	{"\xe0\xa0\x80", 3, true},
	{"\xed\x9f\xbf", 3, true},
	{"\xee\x80\x80", 3, true},
	{"\xef\xbf\xbf", 3, true},
	{"\xf0\x90\x80\x80", 4, true},
	{"\xf4\x8f\xbf\xbf", 4, true},
	{"", 0, false},
	{"\0", 1, false},
	{"a\0", 2, false},
	{"a\0b", 3, false},
	{"\x80", 1, false}, /* a continuation of nothing */
	{"a\xbf", 2, false},
	{"\xc0\x80", 2, false}, /* overlong: NUL */
	{"\xc1\xbf", 2, false},
	{"\xe0\x80\x80", 3, false},
	{"\xe0\x9f\xbf", 3, false},
	{"\xf0\x80\x80\x80", 4, false},
	{"\xf0\x8f\xbf\xbf", 4, false},
	{"\xed\xa0\x80", 3, false}, /* surrogates */
	{"\xed\xbf\xbf", 3, false},
	{"\xf4\x90\x80\x80", 4, false}, /* 0x110000 */
	{"\xf5\x80\x80\x80", 4, false},
	{"\xff", 1, false},
	{"\xfe", 1, false},
	{"\xc2", 1, false}, /* cut */
	{"\xc2 ", 2, false},
	{"\xe2\x82", 2, false},
	{"\xe2\x82 ", 3, false},
	{"\xf0\x9f\x98", 3, false},
	{"\xf0\x9f\x98 ", 4, false},
	{"a\xf0\x9f\x98", 4, false},
};

static void names_are_utf_8_without_nul(void **state)
{
	char longest[LAYOUT_NAME_MAX + 1];

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		cleanup(freep) char *exact = malloc(names[i].size + 1);

		assert_non_null(exact);
		exact = realloc(exact, names[i].size ? names[i].size : 1);
		memcpy(exact, names[i].text, names[i].size);
		if (layout_name_ok(exact, names[i].size) != names[i].ok)
			fail_msg("name %zu of the table: wanted %d", i, names[i].ok);
	}
	memset(longest, 'x', sizeof(longest));
	assert_true(layout_name_ok(longest, LAYOUT_NAME_MAX));
	assert_false(layout_name_ok(longest, LAYOUT_NAME_MAX + 1));
	assert_false(layout_name_ok(longest, SIZE_MAX));
}

/* A code point in its shortest form. */
static size_t put_utf8(uint32_t code, char *p)
{
	static const uint8_t leads[] = {0, 0, 0xc0, 0xe0, 0xf0};
	size_t n = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;

	for (size_t i = n; i-- > 1; code >>= 6)
		p[i] = (char)(0x80 | (code & 0x3f));
	p[0] = (char)(leads[n] | code);
	return n;
}

static void every_code_point_is_a_name_but_nul_and_surrogates(void **state)
{
	(void)state;
	for (uint32_t code = 0; code < 0x120000; code++) {
		char text[4];
		size_t n = put_utf8(code, text);
		bool want = code != 0 && (code < 0xd800 || code > 0xdfff) && code <= 0x10ffff;

		if (layout_name_ok(text, n) != want)
			fail_msg("U+%04X: wanted %d", code, want);
	}
}

/* An image of two tensors with names of the same length. The caller may change its bytes. */
static struct image two_names(const char *first, const char *second)
{
	cleanup(weightd_layout_freep) struct weightd_layout *l = new_layout(0);

	ADD(l, first, U8, PARAM, NULL, 1);
	ADD(l, second, U8, PARAM, NULL, 1);
	return build(l);
}

/* Puts every tensor into the index by the name it now has. */
static void make_index(struct image *image)
{
	struct layout l = open_image(image);
	uint32_t *buckets = (uint32_t *)l.buckets, n = l.header->n_buckets;

	memset(buckets, 0xff, n * sizeof(*buckets));
	for (uint32_t i = 0; i < l.header->n_tensors; i++) {
		const struct layout_tensor *t = &l.tensors[i];
		uint32_t at = layout_bucket(l.strings + t->name, t->name_size, n);

		while (buckets[at] != LAYOUT_NONE)
			at = (at + 1) & (n - 1);
		buckets[at] = i;
	}
}

static void a_name_that_is_no_name_is_refused_wherever_it_stands(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		static const char *const places[] = {"", "x", "xx", "xxx", "xxxx"};
		cleanup(image_free) struct image image = {0};

		if (names[i].size == 0)
			continue;
		image = two_names("first", places[names[i].size]);
		memcpy((char *)open_image(&image).strings + tensor_of(&image, 1)->name,
		       names[i].text, names[i].size);
		make_index(&image);
		make_hash(&image);
		if (names[i].ok)
			accept(&image, "a good name");
		else
			refuse(&image, "a bad name", 1, WHY_NAME);
		use_everything(&image);
	}
}

static void a_unit_has_a_name_too(void **state)
{
	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		static const char *const places[] = {"", "x", "xx", "xxx", "xxxx"};
		cleanup(weightd_layout_freep) struct weightd_layout *l = new_layout(0);
		struct layout view;

		if (names[i].size == 0)
			continue;
		ADD(l, "tensor", U8, PARAM, places[names[i].size], 1);
		cleanup(image_free) struct image image = build(l);

		view = open_image(&image);
		memcpy((char *)view.strings + view.units[0].name, names[i].text, names[i].size);
		make_hash(&image);
		if (names[i].ok)
			accept(&image, "a good name of a unit");
		else
			refuse(&image, "a bad name of a unit", 0, WHY_UNIT_NAME);
		use_everything(&image);
	}
}

static void a_name_that_stands_twice_is_refused(void **state)
{
	cleanup(image_free) struct image image = two_names("same", "samE");

	(void)state;
	memcpy((char *)open_image(&image).strings + tensor_of(&image, 1)->name, "same", 4);
	make_index(&image);
	make_hash(&image);
	refuse(&image, "a name twice", 1, WHY_TWICE);
}

static void two_tensors_with_one_string_are_refused(void **state)
{
	cleanup(image_free) struct image image = two_names("same", "samE");

	(void)state;
	tensor_of(&image, 0)->name = tensor_of(&image, 1)->name;
	make_index(&image);
	make_hash(&image);
	refuse(&image, "one string for two", 1, WHY_TWICE);
}

/* --- The name index ------------------------------------------------------------------------------- */

static uint32_t *bucket_of(const struct image *image, uint32_t tensor)
{
	struct layout l = open_image(image);

	for (uint32_t i = 0; i < l.header->n_buckets; i++)
		if (l.buckets[i] == tensor)
			return (uint32_t *)&l.buckets[i];
	fail_msg("tensor %u is in no bucket", tensor);
	return NULL;
}

static void an_index_that_does_not_lead_to_a_tensor_is_refused(void **state)
{
	static const uint32_t values[] = {LAYOUT_NONE, LAYOUT_NONE - 1, N_SAMPLE, 0x80000000,
					  A_WEIGHT};

	(void)state;
	for (uint32_t tensor = 1; tensor < N_SAMPLE; tensor++)
		for (size_t i = 0; i < ARRAY_LEN(values); i++) {
			cleanup(image_free) struct image image = sample();
			struct verdict v;

			*bucket_of(&image, tensor) = values[i];
			make_hash(&image);
			v = check(&image);
			/* An emptied bucket may cut the chain of an earlier tensor. */
			if (v.r != -EBADMSG || v.at > tensor || !strstr(v.why, WHY_TWICE))
				fail_msg("bucket of %u is %u: wanted %d at %u or before, got %d at %u",
					 tensor, values[i], -EBADMSG, tensor, v.r, v.at);
			use_everything(&image);
		}
}

static void an_index_whose_tensors_have_changed_places_is_refused(void **state)
{
	cleanup(image_free) struct image image = sample();
	uint32_t *a = bucket_of(&image, A_WEIGHT), *b = bucket_of(&image, LAST);
	struct verdict v;

	(void)state;
	*a = LAST;
	*b = A_WEIGHT;
	make_hash(&image);
	v = check(&image);
	/* Their chains decide which of the two is found. */
	assert_int_equal(v.r, -EBADMSG);
	assert_true(v.at == A_WEIGHT || v.at == LAST);
	assert_non_null(strstr(v.why, WHY_TWICE));
}

static void looking_up_in_a_full_index_ends(void **state)
{
	cleanup(weightd_layout_freep) struct weightd_layout *built = numbered_layout(1000);
	cleanup(image_free) struct image image = build(built);
	struct layout l = open_image(&image);

	(void)state;
	for (uint32_t i = 0; i < l.header->n_buckets; i++)
		if (l.buckets[i] == LAYOUT_NONE)
			((uint32_t *)l.buckets)[i] = 0;
	expect_no_tensor(&l, "layers.1000.weight");
	expect_no_tensor(&l, "");
	make_hash(&image);
	accept(&image, "an index without an empty bucket");
	check_promises(&image);
}

/* --- Millions ------------------------------------------------------------------------------------- */

#define MILLIONS (SANITIZED ? 200000 : LAYOUT_TENSORS_MAX)

/* The layout being built and its image, 430 and 393 MB, and room for what realloc() moves. */
#define RSS_LIMIT_KB (SANITIZED ? INT64_MAX : 1500000)

/*
 * A step takes about 1 ms. A virtual machine's time is now and then taken away, also from a thread's. The first ones of large
 * images stand for the others, which make soak takes too.
 */
static void check_steps(const struct image *image, const char *what)
{
	struct verdict v = check_part(image, is_long_form() ? UINT_MAX : 1000);

	print_message("%s, %u tensors: %u steps, %.2f s, the longest %.2f ms\n", what,
		      header_of(image)->n_tensors, v.n_steps, (double)v.total_ns * 1e-9,
		      (double)v.longest_ns * 1e-6);
	if (v.r != 0 && (v.r != 1 || is_long_form()))
		fail_msg("%s: wanted 0, got %d at %u, '%s'", what, v.r, v.at, v.why);
	if (!SANITIZED)
		assert_in_range(v.n_long, 0, 2 + v.n_steps / 50);
	if (!SANITIZED) /* or few steps do the most of it */
		assert_in_range(v.total_ns / v.n_steps, 0, STEP_LONG_NS);
}

static void millions_of_tensors_are_built_and_checked_in_short_steps(void **state)
{
	uint64_t before = cpu_ns();
	cleanup(weightd_layout_freep) struct weightd_layout *l = numbered_layout(MILLIONS);
	cleanup(image_free) struct image image = build(l);
	const uint64_t one[] = {1};
	struct rusage usage;

	(void)state;
	if (MILLIONS == LAYOUT_TENSORS_MAX)
		assert_int_equal(weightd_layout_add(l, "one more", WEIGHTD_U8, 1, one,
						    WEIGHTD_PARAM, NULL),
				 -EOVERFLOW);
	print_message("built in %.2f s, %.0f MB\n", (double)(cpu_ns() - before) * 1e-9,
		      (double)image.size * 1e-6);
	check_steps(&image, "honest");
	assert_in_range(cpu_ns() - before, 0, 15000000000);
	assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
	assert_in_range(usage.ru_maxrss, 0, RSS_LIMIT_KB);
}

/*
 * The worst index that is still right: each tensor as far from its bucket as may be, and no bucket left
 * empty.
 */
static void make_worst_index(struct image *image)
{
	struct layout l = open_image(image);
	uint32_t *buckets = (uint32_t *)l.buckets, n = l.header->n_buckets;

	memset(buckets, 0xff, n * sizeof(*buckets));
	for (uint32_t i = 0; i < l.header->n_tensors; i++) {
		const struct layout_tensor *t = &l.tensors[i];
		uint32_t at = layout_bucket(l.strings + t->name, t->name_size, n);

		at = (at + LAYOUT_PROBES_MAX - 1) & (n - 1);
		while (buckets[at] != LAYOUT_NONE)
			at = (at - 1) & (n - 1);
		buckets[at] = i;
	}
	for (uint32_t i = 0; i < n; i++)
		if (buckets[i] == LAYOUT_NONE)
			buckets[i] = (uint32_t)(i * 2654435761u) % l.header->n_tensors;
}

static struct image worst_image(uint32_t n)
{
	cleanup(weightd_layout_freep) struct weightd_layout *l = numbered_layout(n);
	struct image image = build(l);

	make_worst_index(&image);
	make_hash(&image);
	return image;
}

static void a_hostile_index_makes_steps_no_longer(void **state)
{
	cleanup(image_free) struct image image = worst_image(SANITIZED ? 5000 : 200000);
	cleanup(image_free) struct image small = worst_image(2000);

	(void)state;
	check_steps(&image, "the worst index");
	accept(&small, "the worst index, whole");
}

static void millions_of_units_are_checked_in_short_steps(void **state)
{
	const uint32_t n = SANITIZED ? 20000 : LAYOUT_UNITS_MAX / 16;
	struct layout_header h = {
		.magic = LAYOUT_MAGIC,
		.abi = LAYOUT_ABI,
		.alignment = LAYOUT_ALIGNMENT_FLAT_MIN,
		.n_tensors = 1,
		.n_units = n,
		.n_buckets = 2,
		.strings_size = LAYOUT_NAME_MAX + 1,
	};
	cleanup(image_free) struct image image = {0};
	struct layout_unit *units;
	uint32_t *buckets;
	char *name;

	(void)state;
	assert_true(layout_image_size(&h, &image.size));
	h.total_size = image.size;
	image.bytes = calloc(1, image.size);
	assert_non_null(image.bytes);
	*header_of(&image) = h;
	units = (struct layout_unit *)(tensor_of(&image, 0) + 1);
	buckets = (uint32_t *)(units + n);
	name = (char *)(buckets + 2);
	for (size_t i = 0; i < LAYOUT_NAME_MAX; i += 4)
		memcpy(name + i, "\xf4\x8f\xbf\xbf", 4);
	for (uint32_t i = 0; i < n; i++) /* all of them the same, the slowest name */
		units[i].name_size = LAYOUT_NAME_MAX;
	*tensor_of(&image, 0) = (struct layout_tensor){
		.name_size = LAYOUT_NAME_MAX,
		.unit = n - 1,
		.tied_to = LAYOUT_NONE,
		.dtype = DTYPE_U8,
		.role = LAYOUT_PARAM,
		.n_bytes = 1,
	};
	header_of(&image)->data_size = LAYOUT_ALIGNMENT_FLAT_MIN;
	make_index(&image);
	make_hash(&image);
	check_steps(&image, "units");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_field_that_is_wrong_is_refused_with_its_reason),
		cmocka_unit_test(
			any_field_may_have_any_interesting_value_and_nothing_is_read_outside),
		cmocka_unit_test(an_image_of_another_size_is_refused),
		cmocka_unit_test(buckets_are_a_power_of_two_and_twice_the_tensors),
		cmocka_unit_test(a_rank_past_the_limit_is_refused_where_its_dims_are_there),
		cmocka_unit_test(a_tied_tensor_has_as_many_bytes),
		cmocka_unit_test(sizes_of_images_do_not_overflow),
		cmocka_unit_test(names_are_utf_8_without_nul),
		cmocka_unit_test(every_code_point_is_a_name_but_nul_and_surrogates),
		cmocka_unit_test(a_name_that_is_no_name_is_refused_wherever_it_stands),
		cmocka_unit_test(a_unit_has_a_name_too),
		cmocka_unit_test(a_name_that_stands_twice_is_refused),
		cmocka_unit_test(two_tensors_with_one_string_are_refused),
		cmocka_unit_test(an_index_that_does_not_lead_to_a_tensor_is_refused),
		cmocka_unit_test(an_index_whose_tensors_have_changed_places_is_refused),
		cmocka_unit_test(looking_up_in_a_full_index_ends),
		cmocka_unit_test(millions_of_tensors_are_built_and_checked_in_short_steps),
		cmocka_unit_test(a_hostile_index_makes_steps_no_longer),
		cmocka_unit_test(millions_of_units_are_checked_in_short_steps),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

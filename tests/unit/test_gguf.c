/* The rules of GGUF, each with a header that just keeps it and one that breaks it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/num.h"
#include "ipc/dtype.h"
#include "libclient/image/gguf.h"
#include "libclient/version/layout_builder.h"

/* ggml's numbers. */
#define F32 0
#define Q4_0 2
#define Q4_K 12

#define U16 2
#define U32 4
#define TEXT 8
#define ARRAY 9

/* A file in the making. */
struct bytes {
	uint8_t p[4096];
	size_t n;
};

static void put(struct bytes *b, const void *p, size_t n)
{
	assert_true(b->n + n <= sizeof(b->p));
	memcpy(b->p + b->n, p, n);
	b->n += n;
}

static void put_number(struct bytes *b, uint64_t value, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		uint8_t byte = (uint8_t)(value >> (8 * i));

		put(b, &byte, 1);
	}
}

static void put_text(struct bytes *b, const char *text)
{
	put_number(b, strlen(text), 8);
	put(b, text, strlen(text));
}

static void put_zeros(struct bytes *b, size_t n)
{
	for (size_t i = 0; i < n; i++)
		put_number(b, 0, 1);
}

static void pad(struct bytes *b, size_t alignment)
{
	put_zeros(b, -b->n & (alignment - 1));
}

static void begin(struct bytes *b, uint64_t n_tensors, uint64_t n_keys)
{
	b->n = 0;
	put(b, "GGUF", 4);
	put_number(b, 3, 4);
	put_number(b, n_tensors, 8);
	put_number(b, n_keys, 8);
}

static void put_key(struct bytes *b, const char *key, uint32_t type)
{
	put_text(b, key);
	put_number(b, type, 4);
}

/* Two dimensions, the innermost first, as a file has them. */
static void put_tensor(struct bytes *b, const char *name, uint64_t inner, uint64_t outer,
		       uint32_t type, uint64_t offset)
{
	put_text(b, name);
	put_number(b, 2, 4);
	put_number(b, inner, 8);
	put_number(b, outer, 8);
	put_number(b, type, 4);
	put_number(b, offset, 8);
}

/* Copied to the heap exactly, so that ASan sees a read past the end. The names of `g` are lost. */
static int parse(const struct bytes *b, uint64_t file_size, struct gguf *g, struct sentence *s)
{
	char *copy = malloc(b->n ? b->n : 1);
	int r;

	assert_non_null(copy);
	memcpy(copy, b->p, b->n);
	(void)sentence_set(s, 0, "%s", "");
	r = gguf_parse(copy, b->n, file_size, g, s);
	free(copy);
	return r;
}

static void accept(const struct bytes *b)
{
	struct gguf g = {0};
	struct sentence s;
	int r = parse(b, b->n, &g, &s);

	if (r != 0)
		fail_msg("refused (%d): %s", r, s.text);
	gguf_deinit(&g);
}

static void refuse(const struct bytes *b, int rule, const char *phrase)
{
	struct gguf g = {0};
	struct sentence s;
	int r = parse(b, b->n, &g, &s);

	if (r == 0)
		gguf_deinit(&g);
	if (r != rule || !strstr(s.text, phrase))
		fail_msg("wanted %d and \"%s\", got %d: %s", rule, phrase, r, s.text);
}

/* The data of one tensor at their start, `size` bytes. */
static void end_one(struct bytes *b, size_t size)
{
	pad(b, 32);
	put_zeros(b, size);
}

static void a_file_gives_its_tensors(void **state)
{
	struct bytes b;
	struct gguf g;
	struct sentence s;

	(void)state;
	begin(&b, 3, 1);
	put_key(&b, "general.architecture", TEXT);
	put_text(&b, "llama");
	put_tensor(&b, "a", 512, 3, Q4_K, 0); /* 864 bytes, which is 27 * 32 */
	put_tensor(&b, "b", 5, 1, F32, 864);
	put_tensor(&b, "c", 32, 2, Q4_0, 896);
	pad(&b, 32);
	put_zeros(&b, 896 + 36);
	assert_int_equal(gguf_parse(b.p, b.n, b.n, &g, &s), 0);
	assert_int_equal(g.n_tensors, 3);
	assert_int_equal(g.alignment, 32);
	assert_int_equal(g.architecture_size, 5);
	assert_memory_equal(g.architecture, "llama", 5);
	assert_int_equal(g.data_offset, b.n - 932);
	assert_int_equal(g.data_size, 932);
	assert_memory_equal(g.tensors[0].name, "a", 1);
	assert_int_equal(g.tensors[0].dtype, WEIGHTD_Q4_K);
	assert_int_equal(g.tensors[0].n_dims, 2);
	assert_int_equal(g.tensors[0].shape[0], 3); /* outermost first */
	assert_int_equal(g.tensors[0].shape[1], 512);
	assert_int_equal(g.tensors[0].n_bytes, 864);
	assert_int_equal(g.tensors[1].dtype, WEIGHTD_F32);
	assert_int_equal(g.tensors[1].offset, 864);
	assert_int_equal(g.tensors[2].n_bytes, 36);
	gguf_deinit(&g);
}

static void every_prefix_of_a_header_asks_for_more_or_is_cut_off(void **state)
{
	struct bytes b;
	uint64_t data_offset;
	struct gguf g;
	struct sentence s;

	(void)state;
	begin(&b, 1, 2);
	put_key(&b, "k", ARRAY);
	put_number(&b, TEXT, 4);
	put_number(&b, 2, 8);
	put_text(&b, "x");
	put_text(&b, "");
	put_key(&b, "l", U32);
	put_number(&b, 7, 4);
	put_tensor(&b, "a", 32, 1, Q4_0, 0);
	pad(&b, 32);
	data_offset = b.n;
	put_zeros(&b, 18);
	for (uint64_t n = 0; n < b.n; n++) {
		struct bytes cut = b;
		int r;

		cut.n = n;
		r = parse(&cut, b.n, &g, &s);
		if (r == 0)
			gguf_deinit(&g);
		assert_int_equal(r, n < data_offset ? GGUF_MORE : 0);
		r = parse(&cut, n, &g, &s);
		assert_int_equal(r, n < data_offset ? GGUF_CUT_OFF : GGUF_SIZE);
		assert_true(s.text[0]);
	}
	accept(&b);
}

static void versions_2_and_3_are_read(void **state)
{
	struct bytes b;

	(void)state;
	begin(&b, 1, 0);
	put_tensor(&b, "a", 1, 1, F32, 0);
	end_one(&b, 4);
	for (unsigned version = 0; version < 6; version++) {
		b.p[4] = (uint8_t)version;
		if (version == 2 || version == 3)
			accept(&b);
		else
			refuse(&b, GGUF_VERSION, "this release supports versions 2 and 3");
	}
	b.p[4] = 0;
	b.p[7] = 3;
	refuse(&b, GGUF_VERSION, "big-endian");
	b.p[0] = 'g';
	refuse(&b, GGUF_NO_MAGIC, "does not begin with");
}

static void counts_that_the_file_cannot_have_are_refused(void **state)
{
	static const uint64_t counts[] = {100, UINT32_MAX, INT64_MAX, UINT64_MAX};
	struct bytes b;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(counts); i++) {
		begin(&b, counts[i], 0);
		refuse(&b, GGUF_CUT_OFF, "tensors");
		begin(&b, 0, counts[i]);
		refuse(&b, GGUF_CUT_OFF, "keys of metadata");
		begin(&b, 0, 1);
		put_number(&b, counts[i], 8);
		put_zeros(&b, 10);
		refuse(&b, GGUF_CUT_OFF, "past the end of the file");
		begin(&b, 0, 1);
		put_key(&b, "k", ARRAY);
		put_number(&b, 10, 4); /* u64: counts[i] * 8 overflows */
		put_number(&b, counts[i], 8);
		refuse(&b, GGUF_CUT_OFF, "past the end of the file");
	}
}

static void metadata_have_known_types(void **state)
{
	static const uint8_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};
	struct bytes b;

	(void)state;
	for (uint32_t type = 0; type < 16; type++) {
		begin(&b, 0, 1);
		put_key(&b, "k", type);
		put_zeros(&b, type < ARRAY_LEN(sizes) ? sizes[type] : 8);
		pad(&b, 32);
		if (type < ARRAY_LEN(sizes))
			accept(&b);
		else
			refuse(&b, GGUF_VALUE, "'k' has a value of type");
	}
	begin(&b, 0, 1);
	put_key(&b, "k", ARRAY);
	put_number(&b, ARRAY, 4);
	put_zeros(&b, 8);
	refuse(&b, GGUF_VALUE, "of type 9");
}

static void a_key_stands_once(void **state)
{
	struct bytes b;

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		begin(&b, 0, 3);
		put_key(&b, "k", U16);
		put_number(&b, 0, 2);
		put_key(&b, "l", U16);
		put_number(&b, 0, 2);
		put_key(&b, i ? "k" : "kk", U16);
		put_number(&b, 0, 2);
		pad(&b, 32);
		if (i)
			refuse(&b, GGUF_KEY, "'k' twice");
		else
			accept(&b);
	}
	begin(&b, 0, 1);
	put_key(&b, "", U16);
	put_number(&b, 0, 2);
	refuse(&b, GGUF_KEY, "0 bytes");
}

static void the_alignment_is_a_power_of_two(void **state)
{
	static const struct {
		uint32_t alignment;
		bool ok;
	} cases[] = {{0, false}, {1, true},         {3, false},        {8, true},
		     {64, true}, {2u << 20, false}, {4u << 20, false}, {1u << 31, false}};
	struct bytes b;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		begin(&b, 1, 1);
		put_key(&b, "general.alignment", U32);
		put_number(&b, cases[i].alignment, 4);
		put_tensor(&b, "a", 1, 1, F32, 0);
		if (cases[i].ok) {
			pad(&b, cases[i].alignment);
			put_zeros(&b, 4);
			accept(&b);
		} else if (cases[i].alignment == 2u << 20) {
			refuse(&b, GGUF_CUT_OFF, "past the end"); /* its padding */
		} else {
			refuse(&b, GGUF_ALIGNMENT, "general.alignment");
		}
	}
	begin(&b, 0, 1);
	put_key(&b, "general.alignment", U16);
	put_number(&b, 64, 2);
	refuse(&b, GGUF_ALIGNMENT, "of type uint32");
}

static void a_part_of_a_model_is_refused(void **state)
{
	struct bytes b;

	(void)state;
	for (unsigned n = 0; n < 4; n++) {
		begin(&b, 1, 1);
		put_key(&b, "split.count", U16);
		put_number(&b, n, 2);
		put_tensor(&b, "a", 1, 1, F32, 0);
		end_one(&b, 4);
		if (n > 1)
			refuse(&b, GGUF_SPLIT, "parts of a model: merge them");
		else
			accept(&b);
	}
}

static void a_tensor_has_a_name_of_its_own(void **state)
{
	char longest[WEIGHTD_TENSOR_NAME_MAX + 2];
	struct bytes b;

	(void)state;
	begin(&b, 3, 0);
	put_tensor(&b, "a", 0, 1, F32, 0);
	put_tensor(&b, "b", 0, 1, F32, 0);
	put_tensor(&b, "a", 0, 1, F32, 0);
	end_one(&b, 0);
	refuse(&b, GGUF_NAME, "'a' is in its header twice");
	memset(longest, 'n', sizeof(longest));
	longest[sizeof(longest) - 1] = '\0';
	begin(&b, 1, 0);
	put_tensor(&b, longest, 1, 1, F32, 0);
	end_one(&b, 4);
	refuse(&b, GGUF_NAME, "1 to 1024 bytes");
	begin(&b, 1, 0);
	put_tensor(&b, longest + 1, 1, 1, F32, 0);
	end_one(&b, 4);
	accept(&b);
	begin(&b, 1, 0);
	put_tensor(&b, "", 1, 1, F32, 0);
	refuse(&b, GGUF_NAME, "1 to 1024 bytes");
	begin(&b, 1, 0);
	put_tensor(&b, "\xff", 1, 1, F32, 0);
	refuse(&b, GGUF_NAME, "UTF-8");
}

static void shapes_and_types_are_checked(void **state)
{
	struct bytes b;

	(void)state;
	begin(&b, 1, 0);
	put_text(&b, "a");
	put_number(&b, 5, 4);
	put_zeros(&b, 52);
	refuse(&b, GGUF_SHAPE, "5 dimensions");
	begin(&b, 1, 0);
	put_tensor(&b, "a", UINT64_MAX, 2, F32, 0);
	refuse(&b, GGUF_SHAPE, "overflows");
	begin(&b, 1, 0);
	put_tensor(&b, "a", 31, 2, Q4_0, 0);
	refuse(&b, GGUF_SHAPE, "'a' (Q4_0) are not made of whole blocks");
	begin(&b, 1, 0);
	put_text(&b, "a"); /* a scalar */
	put_number(&b, 0, 4);
	put_number(&b, Q4_0, 4);
	put_number(&b, 0, 8);
	refuse(&b, GGUF_SHAPE, "whole blocks");
	for (uint32_t type = 0; type < 64; type++) {
		bool is_known = type <= 30 ? type != 4 && type != 5
					   : type == 34 || type == 35 || (type >= 39 && type <= 41);

		begin(&b, 1, 0);
		put_tensor(&b, "a", 0, 1, type, 0);
		end_one(&b, 0);
		if (is_known)
			accept(&b);
		else
			refuse(&b, GGUF_TYPE, "this release does not support");
	}
}

static void tensors_stand_where_the_alignment_puts_them(void **state)
{
	static const uint64_t places[] = {0, 4, 31, 32, 33, 64, UINT64_MAX - 3};
	struct bytes b;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(places); i++) {
		begin(&b, 2, 0);
		put_tensor(&b, "a", 1, 1, F32, 0);
		put_tensor(&b, "b", 1, 1, F32, places[i]);
		end_one(&b, 36);
		if (places[i] == 32)
			accept(&b);
		else
			refuse(&b, GGUF_OFFSET, "and not at 32");
	}
}

static void the_data_end_with_the_last_tensor_or_its_padding(void **state)
{
	struct bytes b;

	(void)state;
	for (size_t size = 0; size < 100; size++) {
		begin(&b, 1, 0);
		put_tensor(&b, "a", 9, 1, F32, 0);
		end_one(&b, size);
		if (size == 36 || size == 64)
			accept(&b);
		else
			refuse(&b, GGUF_SIZE, size < 36 ? "cut off" : "belong to no tensor");
	}
	begin(&b, 1, 0);
	put_tensor(&b, "a", (uint64_t)1 << 50, 1, F32, 0);
	end_one(&b, 36);
	refuse(&b, GGUF_SIZE, "cut off");
}

/* --- Against a layout ------------------------------------------------------------------------- */

struct change {
	const char *name;
	uint64_t inner, outer;
	enum weightd_dtype dtype;
	uint64_t alignment;
	const char *phrase; /* NULL: they agree */
};

static void check(const struct bytes *header, const struct change *c)
{
	struct weightd_layout *made;
	const uint64_t shape[] = {c->outer, c->inner}, one[] = {1, 1};
	struct layout l;
	struct sentence s = {0};
	uint64_t size;
	void *image;
	int r;

	assert_int_equal(layout_builder_new(c->alignment, &made), 0);
	assert_int_equal(weightd_layout_add(made, c->name, c->dtype, 2, shape, WEIGHTD_PARAM, NULL),
			 0);
	assert_int_equal(weightd_layout_add(made, "b", WEIGHTD_F32, 2, one, WEIGHTD_PARAM, NULL), 0);
	layout_builder_end_tight(made);
	assert_int_equal(weightd_layout_image(made, &image, &size), 0);
	assert_int_equal(layout_open(image, size, &l), 0);
	r = gguf_check(header->p, header->n, &l, &s);
	if (r != (c->phrase ? -EILSEQ : 0) || !strstr(s.text, c->phrase ? c->phrase : ""))
		fail_msg("wanted \"%s\", got %d: %s", c->phrase ? c->phrase : "", r, s.text);
	free(image);
	weightd_layout_free(made);
}

static void a_header_is_compared_with_the_layout(void **state)
{
	static const struct change changes[] = {
		{"a", 32, 2, WEIGHTD_Q4_0, 32, NULL},
		{"c", 32, 2, WEIGHTD_Q4_0, 32, "tensor 'a' where the layout has 'c'"},
		{"a", 64, 1, WEIGHTD_Q4_0, 32, "another type or shape for tensor 'a'"},
		{"a", 32, 2, WEIGHTD_IQ4_NL, 32, "another type or shape for tensor 'a'"},
		{"a", 32, 2, WEIGHTD_Q4_0, 256, "belong to no tensor"}, /* further behind */
	};
	struct bytes b;

	(void)state;
	begin(&b, 2, 0);
	put_tensor(&b, "a", 32, 2, Q4_0, 0);
	put_tensor(&b, "b", 1, 1, F32, 64);
	pad(&b, 32);
	for (size_t i = 0; i < ARRAY_LEN(changes); i++)
		check(&b, &changes[i]);
	put_zeros(&b, 32);
	check(&b, &(struct change){"a", 32, 2, WEIGHTD_Q4_0, 32, "belong to no tensor"});
	b.n = 40;
	check(&b, &(struct change){"a", 32, 2, WEIGHTD_Q4_0, 32, "where the data begin"});
	b.p[0] = 'g';
	check(&b, &(struct change){"a", 32, 2, WEIGHTD_Q4_0, 32, "is not GGUF"});
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_file_gives_its_tensors),
		cmocka_unit_test(every_prefix_of_a_header_asks_for_more_or_is_cut_off),
		cmocka_unit_test(versions_2_and_3_are_read),
		cmocka_unit_test(counts_that_the_file_cannot_have_are_refused),
		cmocka_unit_test(metadata_have_known_types),
		cmocka_unit_test(a_key_stands_once),
		cmocka_unit_test(the_alignment_is_a_power_of_two),
		cmocka_unit_test(a_part_of_a_model_is_refused),
		cmocka_unit_test(a_tensor_has_a_name_of_its_own),
		cmocka_unit_test(shapes_and_types_are_checked),
		cmocka_unit_test(tensors_stand_where_the_alignment_puts_them),
		cmocka_unit_test(the_data_end_with_the_last_tensor_or_its_padding),
		cmocka_unit_test(a_header_is_compared_with_the_layout),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

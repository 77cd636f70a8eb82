/* The order of tensors in files, and headers that files bring with them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/image/header.h"
#include "libclient/image/packing.h"
#include "libclient/image/verbatim.h"
#include "libclient/version/difference.h"
#include "libclient/version/layout_builder.h"
#include "tests/unit/image.h"

/* --- Packing -------------------------------------------------------------------------------------- */

static struct image pack(const struct image *given)
{
	cleanup(weightd_layout_freep) struct weightd_layout *packed = NULL;
	struct layout l = open_image(given);

	assert_int_equal(packing_make(&l, &packed), 0);
	return build(packed);
}

static void check_group(const struct layout_tensor *before, const struct layout_tensor *t)
{
	unsigned bits = dtype_bits(t->dtype);

	assert_int_equal(t->offset, before ? before->offset + before->n_bytes : 0);
	assert_int_equal(t->offset % (bits < 8 ? 1 : bits / 8), 0);
	if (!before || before->n_bytes % 256 == 0)
		return;
	assert_int_not_equal(t->n_bytes % 256, 0);
	assert_in_range(bits, 1, dtype_bits(before->dtype));
}

/* The same model without a hole, in an order that aligns each tensor, its ties at the end. */
static void check_packed(const struct image *given, const struct image *packed)
{
	struct layout from = open_image(given), l = open_image(packed);
	const struct layout_tensor *before = NULL;
	struct difference d;
	bool had_ties = false;

	accept(packed, "a packed layout");
	check_promises(packed);
	assert_int_equal(l.header->alignment, 1);
	assert_int_equal(l.header->n_tensors, from.header->n_tensors);
	assert_int_equal(difference_find(&from, &l, &d), 0);
	for (uint32_t i = 0; i < l.header->n_tensors; i++) {
		const struct layout_tensor *t = &l.tensors[i];

		had_ties |= t->tied_to != LAYOUT_NONE;
		assert_int_equal(t->tied_to != LAYOUT_NONE, had_ties);
		if (had_ties)
			continue;
		check_group(before, t);
		before = t;
	}
	assert_int_equal(l.header->data_size, before->offset + before->n_bytes);
}

static void the_sample_is_packed_with_its_ties_roles_and_units(void **state)
{
	static const char *const order[] = {"b.weight",    "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80",
					    "step",        "a.weight",
					    "a.bias",      "z",
					    "head.weight", "head.again"};
	cleanup(image_free) struct image given = sample();
	cleanup(image_free) struct image packed = pack(&given);
	struct layout from = open_image(&given), l = open_image(&packed);

	(void)state;
	check_packed(&given, &packed);
	for (uint32_t i = 0; i < N_SAMPLE; i++) {
		const struct layout_tensor *t = &l.tensors[i], *u;
		uint32_t k;

		assert_string_equal(layout_tensor_name(&l, t), order[i]);
		assert_int_equal(layout_find(&from, order[i], strlen(order[i]), &k), 0);
		u = &from.tensors[k];
		assert_int_equal(t->role, u->role);
		assert_string_equal(layout_tensor_unit(&l, t), layout_tensor_unit(&from, u));
		assert_string_equal(layout_tensor_name(&l, &l.tensors[layout_untied(&l, i)]),
				    layout_tensor_name(&from,
						       &from.tensors[layout_untied(&from, k)]));
	}
}

static void a_packed_layout_is_packed_to_itself(void **state)
{
	cleanup(image_free) struct image given = sample();
	cleanup(image_free) struct image packed = pack(&given);
	cleanup(image_free) struct image again = pack(&packed);

	(void)state;
	assert_int_equal(again.size, packed.size);
	assert_memory_equal(again.bytes, packed.bytes, packed.size);
}

static uint64_t next_random(uint64_t *seed)
{
	*seed = *seed * 6364136223846793005u + 1442695040888963407u;
	return *seed >> 33;
}

static void add_random(struct weightd_layout *l, unsigned i, uint64_t *seed)
{
	enum weightd_dtype dtype = (enum weightd_dtype)(1 + next_random(seed) % WEIGHTD_U64);
	const uint64_t shape[] = {next_random(seed) % 70, 4, next_random(seed) % 3 ? 2 : 64};
	enum weightd_role role = next_random(seed) % 2 ? WEIGHTD_PARAM : WEIGHTD_BUFFER;
	char name[32];

	(void)snprintf(name, sizeof(name), "t%u", i);
	if (i && next_random(seed) % 4 == 0)
		assert_int_equal(weightd_layout_tie(l, name, (uint32_t)(next_random(seed) % i), "u"),
				 0);
	else
		assert_int_equal(weightd_layout_add(l, name, dtype, 3, shape, role, "v"), 0);
}

static void any_layout_can_be_packed_and_becomes_an_image(void **state)
{
	uint64_t seed = 21;

	(void)state;
	for (unsigned round = 0; round < 300; round++) {
		cleanup(weightd_layout_freep) struct weightd_layout *l = new_layout(0);
		cleanup(image_free) struct image given = {0}, packed = {0};
		cleanup(freep) void *header = NULL;
		struct layout view;
		uint64_t size;

		for (unsigned i = 0; i <= round % 50; i++)
			add_random(l, i, &seed);
		given = build(l);
		packed = pack(&given);
		check_packed(&given, &packed);
		view = open_image(&packed);
		assert_int_equal(image_header_build(&view, NULL, 0, &header, &size), 0);
		assert_int_equal(image_header_check(header, size, &view, &(struct sentence){0}), 0);
	}
}

static void only_a_layout_without_an_alignment_may_be_packed(void **state)
{
	cleanup(weightd_layout_freep) struct weightd_layout *loose = new_layout(0),
							    *firm = new_layout(256);
	cleanup(weightd_layout_freep) struct weightd_layout *parsed = NULL;
	cleanup(image_free) struct image image = sample();

	(void)state;
	assert_int_equal(weightd_layout_parse(image.bytes, image.size, &parsed), 0);
	assert_true(layout_builder_is_loose(loose));
	assert_false(layout_builder_is_loose(firm));
	assert_false(layout_builder_is_loose(parsed));
}

static void a_layout_may_end_with_its_last_tensor(void **state)
{
	cleanup(weightd_layout_freep) struct weightd_layout *l = new_layout(64), *parsed = NULL;
	cleanup(image_free) struct image image = {0}, again = {0};

	(void)state;
	ADD(l, "a", U8, PARAM, NULL, 65);
	ADD(l, "b", U8, PARAM, NULL, 3);
	layout_builder_end_tight(l);
	assert_int_equal(weightd_layout_n_bytes(l), 131);
	image = build(l);
	accept(&image, "a layout that ends with its last tensor");
	assert_int_equal(weightd_layout_parse(image.bytes, image.size, &parsed), 0);
	again = build(parsed);
	assert_memory_equal(again.bytes, image.bytes, image.size);
}

/* --- Headers of files ------------------------------------------------------------------------------ */

static struct image_verbatim safetensors(char *buf, const char *json)
{
	uint64_t size = htole64(strlen(json));

	memcpy(buf, &size, sizeof(size));
	memcpy(buf + sizeof(size), json, strlen(json));
	return (struct image_verbatim){.header = buf, .size = sizeof(size) + strlen(json)};
}

static void a_header_is_padded_to_a_place_in_a_page_that_is_the_same(void **state)
{
	static const struct {
		uint64_t wanted, size;
	} cases[] = {{0, 10},   {10, 10},  {11, 11},  {4106, 4106},    {8192, 8192},
		     {9, 4105}, {1, 4097}, {5, 4101}, {100000009, 265}};
	char buf[16];
	const struct image_verbatim v = safetensors(buf, "{}");

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		cleanup(freep) char *header = NULL;
		void *made;
		uint64_t size, prefix;

		assert_int_equal(verbatim_header(&v, cases[i].wanted, &made, &size), 0);
		header = made;
		assert_int_equal(size, cases[i].size);
		memcpy(&prefix, header, sizeof(prefix));
		assert_int_equal(le64toh(prefix), size - sizeof(prefix));
		assert_memory_equal(header + 8, "{}", 2);
		for (uint64_t k = 10; k < size; k++)
			assert_int_equal(header[k], ' ');
	}
}

static void a_header_of_another_format_stays_as_it_is(void **state)
{
	static const char gguf[] = "GGUF\3\0\0\0 and what else there is";
	const struct image_verbatim v = {.header = gguf, .size = sizeof(gguf)};
	cleanup(freep) void *header = NULL;
	uint64_t size;

	(void)state;
	assert_int_equal(verbatim_header(&v, 4096, &header, &size), 0);
	assert_int_equal(size, sizeof(gguf));
	assert_memory_equal(header, gguf, size);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_sample_is_packed_with_its_ties_roles_and_units),
		cmocka_unit_test(a_packed_layout_is_packed_to_itself),
		cmocka_unit_test(any_layout_can_be_packed_and_becomes_an_image),
		cmocka_unit_test(only_a_layout_without_an_alignment_may_be_packed),
		cmocka_unit_test(a_layout_may_end_with_its_last_tensor),
		cmocka_unit_test(a_header_is_padded_to_a_place_in_a_page_that_is_the_same),
		cmocka_unit_test(a_header_of_another_format_stays_as_it_is),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

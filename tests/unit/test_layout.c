/* Layouts as the library builds them: what they say, their hashes, their limits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/digest.h"
#include "libclient/version/layout_builder.h"
#include "tests/unit/image.h"

/* --- Images that are right ------------------------------------------------------------------------ */

static void a_built_image_passes_and_keeps_its_promises(void **state)
{
	cleanup(image_free) struct image image = sample();

	(void)state;
	accept(&image, "the sample");
	check_promises(&image);
	use_everything(&image);
}

static void an_image_says_what_was_added(void **state)
{
	static const struct {
		const char *name, *unit;
		uint64_t offset, n_bytes;
		uint32_t tied_to, n_dims;
		enum weightd_dtype dtype;
		enum weightd_role role;
	} want[N_SAMPLE] = {
		{"a.weight", "a", 0, 1200, LAYOUT_NONE, 2, WEIGHTD_F32, WEIGHTD_PARAM},
		{"a.bias", "a", 1280, 12, LAYOUT_NONE, 1, WEIGHTD_F32, WEIGHTD_PARAM},
		{"b.weight", "b", 1536, 4096, LAYOUT_NONE, 2, WEIGHTD_BF16, WEIGHTD_PARAM},
		{"step", "", 5632, 8, LAYOUT_NONE, 0, WEIGHTD_I64, WEIGHTD_BUFFER},
		{"\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", "", 5888, 0, LAYOUT_NONE, 2, WEIGHTD_U8,
		 WEIGHTD_PARAM},
		{"head.weight", "head", 0, 1200, A_WEIGHT, 2, WEIGHTD_F32, WEIGHTD_PARAM},
		{"head.again", "head", 0, 1200, A_WEIGHT, 2, WEIGHTD_F32, WEIGHTD_PARAM},
		{"z", "a", 5888, 3, LAYOUT_NONE, 1, WEIGHTD_F4, WEIGHTD_PARAM},
	};
	cleanup(image_free) struct image image = sample();
	struct layout l = open_image(&image);
	char *base = image.bytes;

	(void)state;
	assert_int_equal(l.header->n_tensors, N_SAMPLE);
	assert_int_equal(l.header->n_units, N_UNITS);
	assert_int_equal(l.header->n_dims, N_DIMS);
	assert_int_equal(l.header->alignment, LAYOUT_ALIGNMENT_DEFAULT);
	assert_int_equal(l.header->data_size, 6144);
	for (uint32_t i = 0; i < N_SAMPLE; i++) {
		struct weightd_tensor t = {.size = sizeof(t)};

		assert_int_equal(tensor_find(&l, base, want[i].name, &t), 0);
		assert_int_equal(t.index, i);
		assert_string_equal(t.name, want[i].name);
		assert_string_equal(t.unit, want[i].unit);
		assert_int_equal(t.offset, want[i].offset);
		assert_int_equal(t.n_bytes, want[i].n_bytes);
		assert_ptr_equal(t.data, base + want[i].offset);
		assert_int_equal(t.tied_to, want[i].tied_to);
		assert_int_equal(t.n_dims, want[i].n_dims);
		assert_int_equal(t.dtype, want[i].dtype);
		assert_int_equal(t.role, want[i].role);
	}
	assert_int_equal(layout_tensor_shape(&l, &l.tensors[B_WEIGHT])[0], 64);
	assert_int_equal(layout_tensor_shape(&l, &l.tensors[B_WEIGHT])[1], 32);
	assert_int_equal(layout_tensor_shape(&l, &l.tensors[HEAD])[1], 100);
	assert_null(layout_tensor_shape(&l, &l.tensors[STEP]));
}

static void a_layout_being_built_tells_the_same_as_its_image(void **state)
{
	cleanup(weightd_layout_freep) struct weightd_layout *l = sample_layout();
	cleanup(image_free) struct image image = build(l);
	struct layout view = open_image(&image);
	uint8_t hash[WEIGHTD_DIGEST_SIZE];

	(void)state;
	assert_int_equal(weightd_layout_n_tensors(l), view.header->n_tensors);
	assert_int_equal(weightd_layout_n_bytes(l), view.header->data_size);
	assert_int_equal(weightd_layout_hash(l, hash), 0);
	assert_memory_equal(hash, view.header->hash, HASH_SIZE);
	for (uint32_t i = 0; i < N_SAMPLE; i++) {
		struct weightd_tensor a = {.size = sizeof(a)}, b = {.size = sizeof(b)};

		assert_int_equal(weightd_layout_tensor(l, i, &a), 0);
		assert_int_equal(tensor_get(&view, NULL, i, &b), 0);
		assert_string_equal(a.name, b.name);
		assert_string_equal(a.unit, b.unit);
		assert_int_equal(a.offset, b.offset);
		assert_int_equal(a.n_dims, b.n_dims);
		if (a.n_dims)
			assert_memory_equal(a.shape, b.shape, a.n_dims * sizeof(uint64_t));
	}
	assert_int_equal(weightd_layout_tensor(l, N_SAMPLE, &(struct weightd_tensor){.size = 88}),
			 -ENOENT);
}

static void tensors_that_follow_each_other_share_a_unit(void **state)
{
	cleanup(image_free) struct image image = sample();
	struct layout l = open_image(&image);

	(void)state;
	assert_int_equal(l.tensors[A_WEIGHT].unit, UNIT_A);
	assert_int_equal(l.tensors[A_BIAS].unit, UNIT_A);
	assert_int_equal(l.tensors[B_WEIGHT].unit, UNIT_B);
	assert_int_equal(l.tensors[STEP].unit, LAYOUT_NONE);
	assert_int_equal(l.tensors[EMPTY].unit, LAYOUT_NONE);
	assert_int_equal(l.tensors[HEAD].unit, UNIT_HEAD);
	assert_int_equal(l.tensors[HEAD_AGAIN].unit, UNIT_HEAD);
	assert_int_equal(l.tensors[LAST].unit, UNIT_A_AGAIN);
}

static void units_of_which_one_begins_like_the_other_are_two(void **state)
{
	cleanup(weightd_layout_freep) struct weightd_layout *l = new_layout(0);

	(void)state;
	ADD(l, "1", U8, PARAM, "ab", 1);
	ADD(l, "2", U8, PARAM, "a", 1);
	ADD(l, "3", U8, PARAM, "ab", 1);
	cleanup(image_free) struct image image = build(l);
	struct layout view = open_image(&image);

	for (uint32_t i = 0; i < 3; i++)
		assert_string_equal(layout_tensor_unit(&view, &view.tensors[i]),
				    i == 1 ? "a" : "ab");
}

static void a_tie_leads_to_the_tensor_that_has_the_bytes(void **state)
{
	cleanup(weightd_layout_freep) struct weightd_layout *l = new_layout(0);

	(void)state;
	ADD(l, "first", U8, PARAM, NULL, 1);
	ADD(l, "second", F32, BUFFER, NULL, 2);
	assert_int_equal(weightd_layout_tie(l, "tied", 1, NULL), 0);
	assert_int_equal(weightd_layout_tie(l, "tied to that", 2, NULL), 0);
	cleanup(image_free) struct image image = build(l);

	accept(&image, "ties");
	for (uint32_t i = 2; i < 4; i++) {
		assert_int_equal(tensor_of(&image, i)->tied_to, 1);
		assert_int_equal(tensor_of(&image, i)->offset, 256);
		assert_int_equal(tensor_of(&image, i)->n_bytes, 8);
		assert_int_equal(tensor_of(&image, i)->role, WEIGHTD_BUFFER);
	}
}

static void every_name_is_found_and_no_other(void **state)
{
	static const uint32_t numbers[] = {1, 7, 8, 9, 1000, 100000};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
		cleanup(weightd_layout_freep) struct weightd_layout *built = numbered_layout(
			numbers[i]);
		cleanup(image_free) struct image image = build(built);
		struct layout l = open_image(&image);

		accept(&image, "a numbered layout");
		for (uint32_t k = 0; k < numbers[i]; k++) {
			char name[32];
			int n = snprintf(name, sizeof(name), "layers.%u.weight", k);
			uint32_t found = UINT32_MAX;

			assert_int_equal(layout_find(&l, name, (size_t)n, &found), 0);
			assert_int_equal(found, k);
			assert_int_equal(layout_find(&l, name, (size_t)n - 1, &found), -ENOENT);
			assert_int_equal(layout_find(&l, name, (size_t)n + 1, &found), -ENOENT);
		}
		expect_no_tensor(&l, "");
		expect_no_tensor(&l, "Layers.0.weight");
		expect_no_tensor(&l, "layers.0.weigh");
		expect_no_tensor(&l, "layers.0.weight ");
		expect_no_tensor(&l, "layers.100000.weight");
	}
}

static void alignment_is_of_the_callers_choice(void **state)
{
	static const uint64_t good[] = {64, 128, 4096, 2 * MIB};
	static const uint64_t bad[] = {
		1, 32, 63, 65, 96, 4 * MIB, (uint64_t)1 << 32, (uint64_t)1 << 63};
	struct weightd_layout *none = (struct weightd_layout *)1;

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		cleanup(weightd_layout_freep) struct weightd_layout *l = new_layout(good[i]);

		ADD(l, "a", U8, PARAM, NULL, 1);
		ADD(l, "b", U8, PARAM, NULL, 1);
		cleanup(image_free) struct image image = build(l);

		accept(&image, "an alignment");
		assert_int_equal(tensor_of(&image, 1)->offset, good[i]);
		assert_int_equal(header_of(&image)->data_size, 2 * good[i]);
	}
	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_int_equal(weightd_layout_new(bad[i], &none), -EINVAL);
	assert_ptr_equal(none, (struct weightd_layout *)1);
}

static void a_layout_of_empty_tensors_has_no_bytes(void **state)
{
	cleanup(weightd_layout_freep) struct weightd_layout *l = new_layout(0);

	(void)state;
	ADD(l, "a", F32, PARAM, NULL, 0);
	ADD(l, "b", F32, PARAM, NULL, 5, 0);
	cleanup(image_free) struct image image = build(l);

	accept(&image, "empty tensors");
	assert_int_equal(header_of(&image)->data_size, 0);
}

static void the_largest_rank_and_the_longest_name_pass(void **state)
{
	cleanup(weightd_layout_freep) struct weightd_layout *l = new_layout(0);
	uint64_t shape[LAYOUT_DIMS_MAX + 1];
	char name[LAYOUT_NAME_MAX + 2];

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(shape); i++)
		shape[i] = 1;
	memset(name, 'n', sizeof(name));
	name[LAYOUT_NAME_MAX] = '\0';
	assert_int_equal(weightd_layout_add(l, name, WEIGHTD_U8, LAYOUT_DIMS_MAX, shape,
					    WEIGHTD_PARAM, name),
			 0);
	cleanup(image_free) struct image image = build(l);

	accept(&image, "the largest rank and the longest name");
	check_promises(&image);
	assert_int_equal(weightd_layout_add(l, "rank 33", WEIGHTD_U8, LAYOUT_DIMS_MAX + 1, shape,
					    WEIGHTD_PARAM, NULL),
			 -EINVAL);
	name[LAYOUT_NAME_MAX] = 'n';
	name[LAYOUT_NAME_MAX + 1] = '\0';
	assert_int_equal(weightd_layout_add(l, name, WEIGHTD_U8, 1, shape, WEIGHTD_PARAM, NULL),
			 -EINVAL);
	assert_int_equal(weightd_layout_add(l, "unit", WEIGHTD_U8, 1, shape, WEIGHTD_PARAM, name),
			 -EINVAL);
	assert_int_equal(weightd_layout_n_tensors(l), 1);
}

/* The same tensors, added again to a layout of another alignment. */
static struct weightd_layout *add_again(const struct weightd_layout *from, uint64_t alignment)
{
	struct weightd_layout *l;
	struct weightd_tensor t = {.size = sizeof(t)};

	assert_int_equal(layout_builder_new(alignment, &l), 0);
	for (uint32_t i = 0; weightd_layout_tensor(from, i, &t) == 0; i++)
		assert_int_equal(t.tied_to == WEIGHTD_NOT_TIED
					 ? weightd_layout_add(l, t.name, t.dtype, t.n_dims, t.shape,
							      t.role, t.unit)
					 : weightd_layout_tie(l, t.name, t.tied_to, t.unit),
				 0);
	return l;
}

static void a_copy_at_another_alignment_is_as_if_added_again(void **state)
{
	static const uint64_t alignments[] = {1, 64, 4096, LAYOUT_ALIGNMENT_MAX};
	static const uint32_t numbers[] = {1, 9, 30000};

	(void)state;
	for (size_t i = 0; i < 4 * ARRAY_LEN(alignments); i++) {
		cleanup(weightd_layout_freep) struct weightd_layout *l =
			i % 4 < 3 ? numbered_layout(numbers[i % 4]) : sample_layout();
		cleanup(weightd_layout_freep) struct weightd_layout *moved = NULL;
		cleanup(weightd_layout_freep) struct weightd_layout *added =
			add_again(l, alignments[i / 4]);

		assert_int_equal(layout_builder_realign(l, alignments[i / 4], &moved), 0);
		ADD(moved, "new", F32, PARAM, "a", 1000);
		ADD(added, "new", F32, PARAM, "a", 1000);
		cleanup(image_free) struct image a = build(moved);
		cleanup(image_free) struct image b = build(added);

		assert_int_equal(a.size, b.size);
		assert_memory_equal(a.bytes, b.bytes, a.size);
	}
}

static void a_copy_at_no_alignment_is_refused(void **state)
{
	cleanup(weightd_layout_freep) struct weightd_layout *l = sample_layout();
	cleanup(weightd_layout_freep) struct weightd_layout *large = new_layout(0);
	struct weightd_layout *copy = NULL;

	(void)state;
	assert_int_equal(layout_builder_realign(l, 0, &copy), -EINVAL);
	assert_int_equal(layout_builder_realign(l, 3, &copy), -EINVAL);
	ADD(large, "a", U8, PARAM, "", 1);
	ADD(large, "b", U8, PARAM, "", DIGEST_DATA_MAX - 2 * LAYOUT_ALIGNMENT_MAX);
	assert_int_equal(layout_builder_realign(large, 2 * LAYOUT_ALIGNMENT_MAX, &copy), -EINVAL);
	assert_int_equal(layout_builder_realign(large, LAYOUT_ALIGNMENT_MAX, &copy), 0);
	weightd_layout_free(take_ptr(copy));
	ADD(large, "c", U8, PARAM, "", 1);
	assert_int_equal(layout_builder_realign(large, LAYOUT_ALIGNMENT_MAX, &copy), -EOVERFLOW);
	assert_null(copy);
}

/* --- Images that are parsed ----------------------------------------------------------------------- */

static void a_parsed_image_is_written_down_as_it_was(void **state)
{
	static const uint32_t numbers[] = {1, 9, 30000};

	(void)state;
	for (size_t i = 0; i <= ARRAY_LEN(numbers); i++) {
		cleanup(weightd_layout_freep) struct weightd_layout *l =
			i < ARRAY_LEN(numbers) ? numbered_layout(numbers[i]) : sample_layout();
		cleanup(weightd_layout_freep) struct weightd_layout *parsed = NULL;
		cleanup(image_free) struct image image = build(l);

		assert_int_equal(weightd_layout_parse(image.bytes, image.size, &parsed), 0);
		cleanup(image_free) struct image again = build(parsed);

		assert_int_equal(again.size, image.size);
		assert_memory_equal(again.bytes, image.bytes, image.size);
		assert_int_equal(weightd_layout_n_bytes(parsed), weightd_layout_n_bytes(l));
	}
}

static void a_parsed_layout_grows_like_the_one_it_came_from(void **state)
{
	cleanup(weightd_layout_freep) struct weightd_layout *l = sample_layout();
	cleanup(weightd_layout_freep) struct weightd_layout *parsed = NULL;
	cleanup(image_free) struct image image = build(l);

	(void)state;
	assert_int_equal(weightd_layout_parse(image.bytes, image.size, &parsed), 0);
	memset(image.bytes, 0xff, image.size); /* nothing in it is needed any more */
	ADD(l, "new", F32, PARAM, "a", 1000);
	ADD(parsed, "new", F32, PARAM, "a", 1000);
	for (uint32_t i = 0; i < 100; i++) {
		char name[16];

		(void)snprintf(name, sizeof(name), "tied.%u", i);
		assert_int_equal(weightd_layout_tie(l, name, i % N_SAMPLE, "b"), 0);
		assert_int_equal(weightd_layout_tie(parsed, name, i % N_SAMPLE, "b"), 0);
		assert_int_equal(weightd_layout_tie(parsed, name, i % N_SAMPLE, "b"), -EEXIST);
	}
	cleanup(image_free) struct image a = build(l);
	cleanup(image_free) struct image b = build(parsed);

	accept(&b, "a layout that grew");
	assert_int_equal(a.size, b.size);
	assert_memory_equal(a.bytes, b.bytes, a.size);
}

/* The check takes whatever is in a bucket that no look-up needs; growing must not follow it. */
static void a_parsed_layout_with_rubbish_in_its_empty_buckets_grows(void **state)
{
	cleanup(weightd_layout_freep) struct weightd_layout *parsed = NULL;
	cleanup(image_free) struct image image = sample();
	struct layout view = open_image(&image);
	uint32_t *buckets = (uint32_t *)view.buckets;

	(void)state;
	for (uint32_t i = 0; i < view.header->n_buckets; i++)
		if (buckets[i] == LAYOUT_NONE)
			buckets[i] = 0x00ffffff + i;
	make_hash(&image);
	accept(&image, "rubbish in empty buckets");
	assert_int_equal(weightd_layout_parse(image.bytes, image.size, &parsed), 0);
	for (char name[] = "A"; name[0] <= 'Z'; name[0]++)
		assert_int_equal(weightd_layout_tie(parsed, name, 0, NULL), 0);
	cleanup(image_free) struct image grown = build(parsed);

	accept(&grown, "what grew from it");
}

static void an_image_that_the_server_refuses_is_not_parsed(void **state)
{
	struct weightd_layout *none = (struct weightd_layout *)1;
	cleanup(image_free) struct image image = sample();
	cleanup(freep) char *shifted = malloc(image.size + 1);

	(void)state;
	assert_non_null(shifted);
	for (uint64_t size = 0; size < image.size; size++)
		assert_int_equal(weightd_layout_parse(image.bytes, size, &none), -EBADMSG);
	assert_int_equal(weightd_layout_parse(image.bytes, LAYOUT_SIZE_MAX + 1, &none), -EBADMSG);
	tensor_of(&image, B_WEIGHT)->offset += 64;
	assert_int_equal(weightd_layout_parse(image.bytes, image.size, &none), -EBADMSG);
	make_hash(&image);
	assert_int_equal(weightd_layout_parse(image.bytes, image.size, &none), -EBADMSG);
	tensor_of(&image, B_WEIGHT)->offset -= 64;
	make_hash(&image);
	assert_ptr_equal(none, (struct weightd_layout *)1);
	memcpy(shifted + 1, image.bytes, image.size);
	assert_int_equal(weightd_layout_parse(shifted + 1, image.size, &none), 0);
	weightd_layout_free(none);
}

/* --- Hashes --------------------------------------------------------------------------------------- */

static void the_same_calls_give_the_same_image(void **state)
{
	cleanup(image_free) struct image a = sample();
	cleanup(image_free) struct image b = sample();

	(void)state;
	assert_int_equal(a.size, b.size);
	assert_memory_equal(a.bytes, b.bytes, a.size);
}

static void a_refused_call_leaves_no_trace_in_the_image(void **state)
{
	cleanup(weightd_layout_freep) struct weightd_layout *l = sample_layout();
	cleanup(image_free) struct image a = sample();
	const uint64_t huge[] = {(uint64_t)1 << 62}, one[] = {1}, three[] = {3};

	(void)state;
	assert_int_equal(weightd_layout_add(l, "z", WEIGHTD_U8, 1, one, WEIGHTD_PARAM, "new"),
			 -EEXIST);
	assert_int_equal(weightd_layout_tie(l, "step", 0, "new"), -EEXIST);
	assert_int_equal(weightd_layout_add(l, "", WEIGHTD_U8, 1, one, WEIGHTD_PARAM, NULL),
			 -EINVAL);
	assert_int_equal(weightd_layout_add(l, "\xff", WEIGHTD_U8, 1, one, WEIGHTD_PARAM, NULL),
			 -EINVAL);
	assert_int_equal(weightd_layout_add(l, "x", WEIGHTD_U8, 1, one, WEIGHTD_PARAM, "\xff"),
			 -EINVAL);
	assert_int_equal(weightd_layout_add(l, "x", 0, 1, one, WEIGHTD_PARAM, NULL), -EINVAL);
	assert_int_equal(weightd_layout_add(l, "x", 23, 1, one, WEIGHTD_PARAM, NULL), -EINVAL);
	assert_int_equal(weightd_layout_add(l, "x", 256 + WEIGHTD_U8, 1, one, WEIGHTD_PARAM, NULL),
			 -EINVAL);
	assert_int_equal(weightd_layout_add(l, "x", WEIGHTD_U8, 1, one, 0, NULL), -EINVAL);
	assert_int_equal(weightd_layout_add(l, "x", WEIGHTD_U8, 1, one, 3, NULL), -EINVAL);
	assert_int_equal(weightd_layout_add(l, "x", WEIGHTD_F4, 1, three, WEIGHTD_PARAM, NULL),
			 -EINVAL);
	assert_int_equal(weightd_layout_add(l, "x", WEIGHTD_U64, 1, huge, WEIGHTD_PARAM, NULL),
			 -EOVERFLOW);
	assert_int_equal(weightd_layout_tie(l, "x", N_SAMPLE, NULL), -EINVAL);
	cleanup(image_free) struct image b = build(l);

	assert_int_equal(a.size, b.size);
	assert_memory_equal(a.bytes, b.bytes, a.size);
}

/* The hash of a layout of two tensors that differs from its siblings in one thing. */
struct recipe {
	const char *what, *name, *unit;
	uint64_t alignment, first, second;
	enum weightd_dtype dtype;
	enum weightd_role role;
	bool swapped, tied;
};

static void hash_of(const struct recipe *recipe, uint8_t ret[HASH_SIZE])
{
	cleanup(weightd_layout_freep) struct weightd_layout *l = new_layout(recipe->alignment);
	const uint64_t shape[] = {recipe->first, recipe->second};
	const char *names[] = {recipe->name, "other"};

	for (int i = 0; i < 2; i++)
		assert_int_equal(weightd_layout_add(l, names[i ^ recipe->swapped], recipe->dtype, 2,
						    shape, recipe->role, recipe->unit),
				 0);
	if (recipe->tied)
		assert_int_equal(weightd_layout_tie(l, "tied", 0, NULL), 0);
	assert_int_equal(weightd_layout_hash(l, ret), 0);
}

static void one_difference_is_another_hash(void **state)
{
	static const struct recipe recipes[] = {
		{"plain", "n", "u", 256, 4, 6, WEIGHTD_F16, WEIGHTD_PARAM, false, false},
		{"dim", "n", "u", 256, 4, 7, WEIGHTD_F16, WEIGHTD_PARAM, false, false},
		{"order of dims", "n", "u", 256, 6, 4, WEIGHTD_F16, WEIGHTD_PARAM, false, false},
		{"same number of bytes", "n", "u", 256, 2, 12, WEIGHTD_F16, WEIGHTD_PARAM, false,
		 false},
		{"name", "m", "u", 256, 4, 6, WEIGHTD_F16, WEIGHTD_PARAM, false, false},
		{"unit", "n", "v", 256, 4, 6, WEIGHTD_F16, WEIGHTD_PARAM, false, false},
		{"no unit", "n", NULL, 256, 4, 6, WEIGHTD_F16, WEIGHTD_PARAM, false, false},
		{"alignment", "n", "u", 512, 4, 6, WEIGHTD_F16, WEIGHTD_PARAM, false, false},
		{"dtype", "n", "u", 256, 4, 6, WEIGHTD_BF16, WEIGHTD_PARAM, false, false},
		{"role", "n", "u", 256, 4, 6, WEIGHTD_F16, WEIGHTD_BUFFER, false, false},
		{"order of tensors", "n", "u", 256, 4, 6, WEIGHTD_F16, WEIGHTD_PARAM, true, false},
		{"tied", "n", "u", 256, 4, 6, WEIGHTD_F16, WEIGHTD_PARAM, false, true},
	};
	uint8_t hashes[ARRAY_LEN(recipes)][HASH_SIZE];

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(recipes); i++) {
		hash_of(&recipes[i], hashes[i]);
		for (size_t k = 0; k < i; k++)
			if (!memcmp(hashes[k], hashes[i], HASH_SIZE))
				fail_msg("'%s' and '%s' have the same hash", recipes[k].what,
					 recipes[i].what);
	}
}

static void any_changed_byte_is_caught_by_the_hash(void **state)
{
	cleanup(image_free) struct image image = sample();

	(void)state;
	for (uint64_t i = sizeof(struct layout_header) - 4; i < image.size; i++) {
		char old = image.bytes[i];

		image.bytes[i] ^= 0x10;
		if (check(&image).r != -EBADMSG)
			fail_msg("byte %" PRIu64 " of %" PRIu64 " may change", i, image.size);
		image.bytes[i] = old;
	}
	image.bytes[offsetof(struct layout_header, hash)] ^= 1;
	refuse(&image, "another hash", 0, "hash does not match");
	image.bytes[offsetof(struct layout_header, hash)] ^= 1;
	accept(&image, "the image as it was");
}

static void the_hash_of_an_image_of_megabytes_covers_its_last_byte(void **state)
{
	cleanup(weightd_layout_freep) struct weightd_layout *l = numbered_layout(30000);
	cleanup(image_free) struct image image = build(l);
	uint8_t first[HASH_SIZE];

	(void)state;
	assert_in_range(image.size, 2 * DIGEST_LEAF_SIZE, UINT64_MAX);
	memcpy(first, header_of(&image)->hash, HASH_SIZE);
	image.bytes[image.size - 2] ^= 1;
	make_hash(&image);
	assert_memory_not_equal(header_of(&image)->hash, first, HASH_SIZE);
	image.bytes[image.size - 2] ^= 1;
	make_hash(&image);
	assert_memory_equal(header_of(&image)->hash, first, HASH_SIZE);
}

/* --- Names that collide --------------------------------------------------------------------------- */

/* Adds up to n tensors; all names hash to a multiple of `modulus`. Returns the first refusal. */
static int add_colliding(struct weightd_layout *l, uint64_t modulus, uint32_t n)
{
	for (uint64_t i = 0; n > 0; i++) {
		char name[24];
		size_t size = (size_t)snprintf(name, sizeof(name), "%" PRIx64, i);
		int r;

		if (hash64(name, size) % modulus)
			continue;
		r = weightd_layout_add(l, name, WEIGHTD_U8, 0, NULL, WEIGHTD_PARAM, NULL);
		if (r < 0)
			return r;
		n--;
	}
	return 0;
}

static void as_many_names_may_collide_as_are_looked_at(void **state)
{
	cleanup(weightd_layout_freep) struct weightd_layout *l = new_layout(0);

	(void)state;
	assert_int_equal(add_colliding(l, 1024, LAYOUT_PROBES_MAX), 0);
	cleanup(image_free) struct image image = build(l);

	assert_int_equal(header_of(&image)->n_buckets, 512);
	accept(&image, "the longest chain");
	check_promises(&image);
}

static void more_names_that_collide_get_a_sparser_table(void **state)
{
	cleanup(weightd_layout_freep) struct weightd_layout *l = new_layout(0);

	(void)state;
	assert_int_equal(add_colliding(l, 1024, LAYOUT_PROBES_MAX + 100), 0);
	cleanup(image_free) struct image image = build(l);

	assert_in_range(header_of(&image)->n_buckets, 2048, 65536);
	accept(&image, "a sparser table");
	check_promises(&image);
}

static void names_that_collide_in_every_table_are_refused(void **state)
{
	cleanup(weightd_layout_freep) struct weightd_layout *l = new_layout(0);

	(void)state;
	assert_int_equal(add_colliding(l, 1 << 16, LAYOUT_PROBES_MAX + 1), -EINVAL);
	assert_int_equal(weightd_layout_n_tensors(l), LAYOUT_PROBES_MAX);
	cleanup(image_free) struct image image = build(l);

	/* The table is no larger than without the refused name, and works. */
	assert_int_equal(header_of(&image)->n_buckets, 512);
	accept(&image, "what was there before");
	check_promises(&image);
	ADD(l, "another", U8, PARAM, NULL, 1);
}

/* --- Limits of the builder ------------------------------------------------------------------------ */

static void a_layout_without_tensors_cannot_be_built(void **state)
{
	cleanup(weightd_layout_freep) struct weightd_layout *l = new_layout(0);
	uint8_t hash[HASH_SIZE];
	void *image = NULL;
	uint64_t size;

	(void)state;
	assert_int_equal(weightd_layout_image(l, &image, &size), -EINVAL);
	assert_null(image);
	assert_int_equal(weightd_layout_hash(l, hash), -EINVAL);
	weightd_layout_free(NULL);
}

static void a_buffer_has_at_most_a_pebibyte(void **state)
{
	cleanup(weightd_layout_freep) struct weightd_layout *l = new_layout(0);
	const uint64_t most[] = {DIGEST_DATA_MAX - LAYOUT_ALIGNMENT_MAX}, more[] = {most[0] + 1},
		       one[] = {1};

	(void)state;
	assert_int_equal(weightd_layout_add(l, "x", WEIGHTD_U8, 1, more, WEIGHTD_PARAM, NULL),
			 -EOVERFLOW);
	assert_int_equal(weightd_layout_add(l, "x", WEIGHTD_U8, 1, most, WEIGHTD_PARAM, NULL), 0);
	assert_int_equal(weightd_layout_add(l, "y", WEIGHTD_U8, 1, one, WEIGHTD_PARAM, NULL),
			 -EOVERFLOW);
	cleanup(image_free) struct image image = build(l);

	accept(&image, "a pebibyte");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_built_image_passes_and_keeps_its_promises),
		cmocka_unit_test(an_image_says_what_was_added),
		cmocka_unit_test(a_layout_being_built_tells_the_same_as_its_image),
		cmocka_unit_test(tensors_that_follow_each_other_share_a_unit),
		cmocka_unit_test(units_of_which_one_begins_like_the_other_are_two),
		cmocka_unit_test(a_tie_leads_to_the_tensor_that_has_the_bytes),
		cmocka_unit_test(every_name_is_found_and_no_other),
		cmocka_unit_test(alignment_is_of_the_callers_choice),
		cmocka_unit_test(a_layout_of_empty_tensors_has_no_bytes),
		cmocka_unit_test(the_largest_rank_and_the_longest_name_pass),
		cmocka_unit_test(a_copy_at_another_alignment_is_as_if_added_again),
		cmocka_unit_test(a_copy_at_no_alignment_is_refused),
		cmocka_unit_test(a_parsed_image_is_written_down_as_it_was),
		cmocka_unit_test(a_parsed_layout_grows_like_the_one_it_came_from),
		cmocka_unit_test(a_parsed_layout_with_rubbish_in_its_empty_buckets_grows),
		cmocka_unit_test(an_image_that_the_server_refuses_is_not_parsed),
		cmocka_unit_test(the_same_calls_give_the_same_image),
		cmocka_unit_test(a_refused_call_leaves_no_trace_in_the_image),
		cmocka_unit_test(one_difference_is_another_hash),
		cmocka_unit_test(any_changed_byte_is_caught_by_the_hash),
		cmocka_unit_test(the_hash_of_an_image_of_megabytes_covers_its_last_byte),
		cmocka_unit_test(as_many_names_may_collide_as_are_looked_at),
		cmocka_unit_test(more_names_that_collide_get_a_sparser_table),
		cmocka_unit_test(names_that_collide_in_every_table_are_refused),
		cmocka_unit_test(a_layout_without_tensors_cannot_be_built),
		cmocka_unit_test(a_buffer_has_at_most_a_pebibyte),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * Headers that weightd writes, read again by its parser and by jansson.
 */
#include "image.h"

#include <jansson.h>

#include "libclient/image/header.h"
#include "libclient/image/safetensors.h"

struct written {
	void *bytes;
	uint64_t size;
};

static void written_free(struct written *w)
{
	free(w->bytes);
}

/* Moves the tensors of an image of a layout together, as in a file. */
static void make_dense(struct image *image)
{
	uint64_t end = 0;

	for (uint32_t i = 0; i < header_of(image)->n_tensors; i++) {
		struct layout_tensor *t = tensor_of(image, i);

		if (t->tied_to != LAYOUT_NONE) {
			t->offset = tensor_of(image, t->tied_to)->offset;
		} else {
			t->offset = end;
			end += t->n_bytes;
		}
	}
	header_of(image)->alignment = 1;
	header_of(image)->data_size = end;
	make_hash(image);
}

static struct image dense(struct weightd_layout *l)
{
	cleanup(weightd_layout_freep) struct weightd_layout *owned = l, *parsed = NULL;
	struct image image = build(owned);

	make_dense(&image);
	assert_int_equal(weightd_layout_parse(image.bytes, image.size, &parsed), 0);
	return image;
}

static struct written write_header(const struct image *image, const struct image_metadata *m,
				   uint64_t wanted)
{
	struct layout l = open_image(image);
	struct written w = {0};

	assert_int_equal(image_header_build(&l, m, wanted, &w.bytes, &w.size), 0);
	return w;
}

static int build_result(const struct image *image, const struct image_metadata *m)
{
	struct layout l = open_image(image);
	void *bytes = NULL;
	uint64_t size;
	int r = image_header_build(&l, m, 0, &bytes, &size);

	free(bytes);
	return r;
}

static uint64_t text_size(const struct written *w)
{
	uint64_t n = 0;

	for (unsigned i = 0; i < IMAGE_HEADER_PREFIX_SIZE; i++)
		n |= (uint64_t)((const uint8_t *)w->bytes)[i] << (8 * i);
	return n;
}

static const char *text_of(const struct written *w)
{
	return (const char *)w->bytes + IMAGE_HEADER_PREFIX_SIZE;
}

/* Bytes of the text without the blanks behind it. */
static uint64_t used_of(const struct written *w)
{
	uint64_t n = text_size(w);

	while (n > 0 && text_of(w)[n - 1] == ' ')
		n--;
	return n;
}

static struct safetensors parse_header(const struct written *w, uint64_t data_size)
{
	struct safetensors st = {0};
	struct sentence s;
	int r;

	assert_int_equal(text_size(w) + IMAGE_HEADER_PREFIX_SIZE, w->size);
	r = safetensors_parse(text_of(w), text_size(w), data_size, &st, &s);
	if (r != 0)
		fail_msg("refused (%d: %s): %.200s", r, s.text, text_of(w));
	return st;
}

static json_t *metadata_of(const struct written *w)
{
	json_error_t error;
	json_t *all = json_loadb(text_of(w), text_size(w), JSON_REJECT_DUPLICATES, &error), *found;

	if (!all)
		fail_msg("not JSON: %s", error.text);
	found = json_incref(json_object_get(all, "__metadata__"));
	json_decref(all);
	return found;
}

/* The JSON inside the text under `key`. */
static json_t *nested(const json_t *metadata, const char *key)
{
	const char *text = json_string_value(json_object_get(metadata, key));
	json_error_t error;
	json_t *value;

	assert_non_null(text);
	value = json_loads(text, JSON_REJECT_DUPLICATES, &error);
	if (!value)
		fail_msg("%s is not JSON: %s: %s", key, error.text, text);
	return value;
}

/* The parsed header has the untied tensors of the layout, in its order. */
static void assert_same_tensors(const struct image *image, const struct safetensors *st)
{
	struct layout l = open_image(image);
	size_t n = 0;

	for (uint32_t i = 0; i < l.header->n_tensors; i++) {
		const struct layout_tensor *t = &l.tensors[i];
		const struct safetensors_tensor *found = &st->tensors[n];

		if (t->tied_to != LAYOUT_NONE)
			continue;
		assert_true(n++ < st->n_tensors);
		assert_string_equal(found->name, layout_tensor_name(&l, t));
		assert_int_equal(found->dtype, t->dtype);
		assert_int_equal(found->begin, t->offset);
		assert_int_equal(found->end - found->begin, t->n_bytes);
		assert_int_equal(found->n_dims, t->n_dims);
		if (t->n_dims)
			assert_memory_equal(safetensors_shape(st, found), layout_tensor_shape(&l, t),
					    t->n_dims * sizeof(uint64_t));
	}
	assert_int_equal(n, st->n_tensors);
}

static void assert_round_trip(const struct image *image, const struct written *w)
{
	struct safetensors st = parse_header(w, header_of(image)->data_size);

	assert_same_tensors(image, &st);
	safetensors_deinit(&st);
}

/* --- Tests ------------------------------------------------------------------------------------ */

static void test_sample_is_read_back(void **state)
{
	cleanup(image_free) struct image image = dense(sample_layout());
	cleanup(written_free) struct written w = write_header(&image, NULL, 0);
	json_t *metadata = metadata_of(&w);

	(void)state;
	assert_round_trip(&image, &w);
	assert_string_equal(json_string_value(json_object_get(metadata, "format")), "pt");
	json_decref(metadata);
}

static void test_metadata_comes_first(void **state)
{
	static const char start[] = "{\"__metadata__\":{";
	cleanup(image_free) struct image image = dense(sample_layout());
	cleanup(written_free) struct written w = write_header(&image, NULL, 0);

	(void)state;
	assert_memory_equal(text_of(&w), start, strlen(start));
}

static void test_ties_and_buffers_are_metadata(void **state)
{
	cleanup(image_free) struct image image = dense(sample_layout());
	cleanup(written_free) struct written w = write_header(&image, NULL, 0);
	json_t *metadata = metadata_of(&w), *tied = nested(metadata, IMAGE_METADATA_TIED),
	       *buffers = nested(metadata, IMAGE_METADATA_BUFFERS);

	(void)state;
	assert_int_equal(json_object_size(tied), 2);
	assert_string_equal(json_string_value(json_object_get(tied, "head.weight")), "a.weight");
	assert_string_equal(json_string_value(json_object_get(tied, "head.again")), "a.weight");
	assert_int_equal(json_array_size(buffers), 1);
	assert_string_equal(json_string_value(json_array_get(buffers, 0)), "step");
	json_decref(tied);
	json_decref(buffers);
	json_decref(metadata);
}

static void test_without_ties_and_buffers_nothing_of_them_is_written(void **state)
{
	cleanup(image_free) struct image image = dense(numbered_layout(3));
	cleanup(written_free) struct written w = write_header(&image, NULL, 0);
	json_t *metadata = metadata_of(&w);

	(void)state;
	assert_int_equal(json_object_size(metadata), 1);
	json_decref(metadata);
}

/* Every character that JSON escapes, beside others, as a name, a tied name and a name in the list of buffers. */
static void test_names_are_escaped(void **state)
{
	struct weightd_layout *l = new_layout(0);
	char ugly[64] = "\"\\/\x7f\xc3\xa4\xf0\x9f\x98\x80'{}[],:u0041", alias[80];
	json_t *metadata, *tied, *buffers;
	size_t n = strlen(ugly);

	(void)state;
	for (char c = 1; c < 0x20; c++)
		ugly[n++] = c;
	(void)snprintf(alias, sizeof(alias), "%s\"\\", ugly);
	ADD(l, ugly, F32, BUFFER, NULL, 2);
	assert_int_equal(weightd_layout_tie(l, alias, 0, NULL), 0);

	cleanup(image_free) struct image image = dense(l);
	const struct image_attribute list[] = {{ugly, alias}};
	cleanup(written_free) struct written w = write_header(&image,
							      &(struct image_metadata){list, 1}, 0);

	assert_round_trip(&image, &w);
	metadata = metadata_of(&w);
	tied = nested(metadata, IMAGE_METADATA_TIED);
	buffers = nested(metadata, IMAGE_METADATA_BUFFERS);
	assert_string_equal(json_string_value(json_object_get(metadata, ugly)), alias);
	assert_string_equal(json_string_value(json_object_get(tied, alias)), ugly);
	assert_string_equal(json_string_value(json_array_get(buffers, 0)), ugly);
	json_decref(tied);
	json_decref(buffers);
	json_decref(metadata);
}

static void test_attributes_cannot_replace_ties(void **state)
{
	static const struct image_attribute list[] = {{IMAGE_METADATA_TIED, "{}"},
						      {"producer", "x"},
						      {IMAGE_METADATA_BUFFERS, "[]"}};
	cleanup(image_free) struct image image = dense(sample_layout());
	cleanup(written_free) struct written w =
		write_header(&image, &(struct image_metadata){list, ARRAY_LEN(list)}, 0);
	json_t *metadata = metadata_of(&w), *tied = nested(metadata, IMAGE_METADATA_TIED);

	(void)state;
	assert_int_equal(json_object_size(metadata), 3);
	assert_int_equal(json_object_size(tied), 2);
	json_decref(tied);
	json_decref(metadata);
}

static void test_no_attributes_at_all(void **state)
{
	cleanup(image_free) struct image image = dense(numbered_layout(1));
	cleanup(written_free) struct written w = write_header(&image,
							      &(struct image_metadata){NULL, 0}, 0);

	(void)state;
	assert_round_trip(&image, &w);
}

static void test_all_types_are_read_back(void **state)
{
	struct weightd_layout *l = new_layout(0);

	(void)state;
	for (enum weightd_dtype dtype = WEIGHTD_BOOL; dtype <= WEIGHTD_U64; dtype++)
		assert_int_equal(weightd_layout_add(l, weightd_dtype_name(dtype), dtype, 2,
						    (const uint64_t[]){3, 8}, WEIGHTD_PARAM, NULL),
				 0);
	cleanup(image_free) struct image image = dense(l);
	cleanup(written_free) struct written w = write_header(&image, NULL, 0);

	assert_round_trip(&image, &w);
}

static void test_empty_and_scalar_tensors(void **state)
{
	struct weightd_layout *l = new_layout(0);

	(void)state;
	ADD(l, "first", F32, PARAM, NULL, 0);
	ADD(l, "odd", U8, PARAM, NULL, 3);
	ADD(l, "between", F32, PARAM, NULL, 5, 0, 7);
	assert_int_equal(weightd_layout_add(l, "scalar", WEIGHTD_I64, 0, NULL, WEIGHTD_PARAM, NULL),
			 0);
	ADD(l, "last", F16, PARAM, NULL, 0, 0);
	cleanup(image_free) struct image image = dense(l);
	cleanup(written_free) struct written w = write_header(&image, NULL, 0);

	assert_round_trip(&image, &w);
}

static void test_nothing_but_empty_tensors(void **state)
{
	struct weightd_layout *l = new_layout(0);

	(void)state;
	ADD(l, "a", F32, PARAM, NULL, 0);
	ADD(l, "b", F32, PARAM, NULL, 0);
	cleanup(image_free) struct image image = dense(l);
	cleanup(written_free) struct written w = write_header(&image, NULL, 0);

	assert_round_trip(&image, &w);
}

static void test_100000_tensors(void **state)
{
	cleanup(image_free) struct image image = dense(numbered_layout(100000));
	cleanup(written_free) struct written w = write_header(&image, NULL, 0);

	(void)state;
	assert_round_trip(&image, &w);
}

static void test_size_is_a_multiple_of_4k_with_room(void **state)
{
	cleanup(image_free) struct image image = dense(sample_layout());

	(void)state;
	/* One more byte at a time, past several multiples. */
	for (size_t n = 0; n < 5000; n += 7) {
		char value[5001];
		const struct image_attribute list[] = {{"x", memset(value, 'x', n)}};
		uint64_t used;

		value[n] = '\0';
		cleanup(written_free) struct written w =
			write_header(&image, &(struct image_metadata){list, 1}, 0);
		used = used_of(&w) + IMAGE_HEADER_PREFIX_SIZE;
		assert_int_equal(w.size % IMAGE_HEADER_ALIGNMENT, 0);
		assert_in_range(w.size - used, IMAGE_HEADER_ROOM,
				IMAGE_HEADER_ROOM + IMAGE_HEADER_ALIGNMENT - 1);
	}
}

static void test_wanted_size_is_kept_while_it_fits(void **state)
{
	cleanup(image_free) struct image image = dense(sample_layout());
	cleanup(written_free) struct written any = write_header(&image, NULL, 0);
	uint64_t used = used_of(&any) + IMAGE_HEADER_PREFIX_SIZE;

	(void)state;
	for (uint64_t wanted = used; wanted < used + 5000; wanted += 13) {
		cleanup(written_free) struct written w = write_header(&image, NULL, wanted);

		assert_int_equal(w.size, wanted);
		assert_int_equal(used_of(&w) + IMAGE_HEADER_PREFIX_SIZE, used);
	}
}

static void test_wanted_size_that_is_too_small_keeps_its_place_in_a_page(void **state)
{
	cleanup(image_free) struct image image = dense(sample_layout());
	cleanup(written_free) struct written any = write_header(&image, NULL, 0);
	uint64_t used = used_of(&any) + IMAGE_HEADER_PREFIX_SIZE;

	(void)state;
	for (uint64_t wanted = 1; wanted < used; wanted += 5) {
		cleanup(written_free) struct written w = write_header(&image, NULL, wanted);

		assert_int_equal(w.size % IMAGE_HEADER_ALIGNMENT, wanted % IMAGE_HEADER_ALIGNMENT);
		assert_in_range(w.size - used, IMAGE_HEADER_ROOM,
				IMAGE_HEADER_ROOM + IMAGE_HEADER_ALIGNMENT - 1);
		assert_round_trip(&image, &w);
	}
}

static void test_larger_alignment_is_refused(void **state)
{
	cleanup(weightd_layout_freep) struct weightd_layout *l = sample_layout();
	cleanup(image_free) struct image image = build(l);

	(void)state;
	assert_int_equal(build_result(&image, NULL), -EOPNOTSUPP);
}

static void test_holes_are_refused(void **state)
{
	(void)state;
	for (uint32_t from = 0; from < N_SAMPLE; from++) {
		cleanup(image_free) struct image image = dense(sample_layout());

		if (tensor_of(&image, from)->tied_to != LAYOUT_NONE)
			continue;
		for (uint32_t i = 0; i < N_SAMPLE; i++)
			if (i >= from)
				tensor_of(&image, i)->offset++;
		header_of(&image)->data_size++;
		assert_int_equal(build_result(&image, NULL), -EOPNOTSUPP);
	}
}

static void test_bytes_behind_the_last_tensor_are_refused(void **state)
{
	cleanup(image_free) struct image image = dense(sample_layout());

	(void)state;
	header_of(&image)->data_size++;
	assert_int_equal(build_result(&image, NULL), -EOPNOTSUPP);
}

static void test_unknown_types_are_refused(void **state)
{
	cleanup(image_free) struct image image = dense(sample_layout());

	(void)state;
	tensor_of(&image, A_BIAS)->dtype = WEIGHTD_U64 + 1;
	assert_int_equal(build_result(&image, NULL), -EOPNOTSUPP);
}

static void test_the_name_of_the_metadata_is_refused(void **state)
{
	struct weightd_layout *l = new_layout(0);

	(void)state;
	ADD(l, "__metadata__", F32, PARAM, NULL, 1);
	cleanup(image_free) struct image image = dense(l);

	assert_int_equal(build_result(&image, NULL), -EOPNOTSUPP);
}

static void test_dimensions_past_63_bits_are_refused(void **state)
{
	struct weightd_layout *l = new_layout(0);

	(void)state;
	ADD(l, "a", F4, PARAM, NULL, 0, (uint64_t)INT64_MAX + 1);
	cleanup(image_free) struct image image = dense(l);

	assert_int_equal(build_result(&image, NULL), -EOPNOTSUPP);
}

static void test_text_past_the_limit_is_refused(void **state)
{
	cleanup(image_free) struct image image = dense(sample_layout());
	cleanup(freep) char *value = malloc(IMAGE_HEADER_TEXT_MAX + 1);
	const struct image_attribute list[] = {{"x", value}};

	(void)state;
	assert_non_null(value);
	memset(value, 'x', IMAGE_HEADER_TEXT_MAX);
	value[IMAGE_HEADER_TEXT_MAX] = '\0';
	assert_int_equal(build_result(&image, &(struct image_metadata){list, 1}), -E2BIG);
}

static void test_wanted_size_past_the_limit_is_refused(void **state)
{
	cleanup(image_free) struct image image = dense(sample_layout());
	struct layout l = open_image(&image);
	void *bytes = NULL;
	uint64_t size;

	(void)state;
	assert_int_equal(image_header_build(&l, NULL, UINT64_MAX, &bytes, &size), -E2BIG);
	assert_null(bytes);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sample_is_read_back),
		cmocka_unit_test(test_metadata_comes_first),
		cmocka_unit_test(test_ties_and_buffers_are_metadata),
		cmocka_unit_test(test_without_ties_and_buffers_nothing_of_them_is_written),
		cmocka_unit_test(test_names_are_escaped),
		cmocka_unit_test(test_attributes_cannot_replace_ties),
		cmocka_unit_test(test_no_attributes_at_all),
		cmocka_unit_test(test_all_types_are_read_back),
		cmocka_unit_test(test_empty_and_scalar_tensors),
		cmocka_unit_test(test_nothing_but_empty_tensors),
		cmocka_unit_test(test_100000_tensors),
		cmocka_unit_test(test_size_is_a_multiple_of_4k_with_room),
		cmocka_unit_test(test_wanted_size_is_kept_while_it_fits),
		cmocka_unit_test(test_wanted_size_that_is_too_small_keeps_its_place_in_a_page),
		cmocka_unit_test(test_larger_alignment_is_refused),
		cmocka_unit_test(test_holes_are_refused),
		cmocka_unit_test(test_bytes_behind_the_last_tensor_are_refused),
		cmocka_unit_test(test_unknown_types_are_refused),
		cmocka_unit_test(test_the_name_of_the_metadata_is_refused),
		cmocka_unit_test(test_dimensions_past_63_bits_are_refused),
		cmocka_unit_test(test_text_past_the_limit_is_refused),
		cmocka_unit_test(test_wanted_size_past_the_limit_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

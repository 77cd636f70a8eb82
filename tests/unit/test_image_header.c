/*
 * Headers that weightd writes, read again by its parser and by jansson.
 */
#include "image.h"

#include <jansson.h>

#include "libclient/image/header.h"
#include "libclient/image/safetensors.h"
#include "libclient/image/unit.h"

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

/* Parses a header and builds the layout of its tensors again, as the loader does. */
static struct image layout_of_header(const struct written *w, uint64_t data_size)
{
	struct safetensors st = parse_header(w, data_size);
	struct weightd_layout *l = new_layout(0);
	char unit[UNIT_MAX];
	uint32_t to;

	for (size_t i = 0; i < st.n_tensors; i++) {
		const struct safetensors_tensor *t = &st.tensors[i];

		assert_int_equal(weightd_layout_add(l, t->name, t->dtype, t->n_dims,
						    safetensors_shape(&st, t), t->role,
						    t->unit ? t->unit : unit_of(t->name, unit)),
				 0);
	}
	for (size_t i = 0; i < st.n_ties; i++) {
		const struct safetensors_tie *t = &st.ties[i];

		for (to = 0; strcmp(st.tensors[to].name, t->name) != 0; to++)
			;
		assert_int_equal(weightd_layout_tie(l, t->alias, to,
						    t->unit ? t->unit : unit_of(t->alias, unit)),
				 0);
	}
	safetensors_deinit(&st);
	return dense(l);
}

/* The whole layout is in the header: roles, ties and units, too. */
static void assert_same_layout(const struct image *image)
{
	cleanup(written_free) struct written w = write_header(image, NULL, 0);
	cleanup(image_free) struct image again = layout_of_header(&w, header_of(image)->data_size);

	assert_memory_equal(header_of(&again)->hash, header_of(image)->hash, HASH_SIZE);
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
	assert_null(json_object_get(metadata, IMAGE_METADATA_TIED));
	assert_null(json_object_get(metadata, IMAGE_METADATA_BUFFERS));
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
	assert_string_equal(json_string_value(json_object_get(metadata, "producer")), "x");
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

/* The tied names of sample_layout() stand before its last tensor; those of an image stand behind all. */
static struct weightd_layout *sample_with_ties_last(const char *unit)
{
	struct weightd_layout *l = new_layout(0);

	ADD(l, "a.weight", F32, PARAM, unit, 3, 100);
	ADD(l, "a.0.bias", F32, BUFFER, unit, 3);
	ADD(l, "a.1.bias", BF16, PARAM, unit, 64, 32);
	ADD(l, "empty", BF16, BUFFER, unit, 0);
	assert_int_equal(weightd_layout_tie(l, "head.weight", 0, unit), 0);
	assert_int_equal(weightd_layout_tie(l, "bias", 1, unit), 0);
	return l;
}

static void test_layouts_are_whole_in_headers(void **state)
{
	static const char *const units[] = {NULL, "one", "\"\\\n\xc3\xa4"};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(units); i++) {
		cleanup(image_free) struct image image = dense(sample_with_ties_last(units[i]));

		assert_same_layout(&image);
	}
}

static void test_units_by_name_are_not_written(void **state)
{
	struct weightd_layout *l = new_layout(0);
	json_t *metadata;

	(void)state;
	ADD(l, "layers.0.weight", F32, PARAM, "layers.0", 2);
	ADD(l, "norm.weight", F32, PARAM, "norm", 2);
	cleanup(image_free) struct image image = dense(l);
	cleanup(written_free) struct written w = write_header(&image, NULL, 0);

	metadata = metadata_of(&w);
	assert_null(json_object_get(metadata, IMAGE_METADATA_UNITS));
	json_decref(metadata);
	assert_same_layout(&image);
}

static void test_runs_of_units_are_short(void **state)
{
	cleanup(image_free) struct image image = dense(numbered_layout(1000));
	cleanup(written_free) struct written w = write_header(&image, NULL, 0);
	json_t *metadata = metadata_of(&w);

	(void)state;
	assert_string_equal(json_string_value(json_object_get(metadata, IMAGE_METADATA_UNITS)),
			    "[[\"layers\",1000]]");
	json_decref(metadata);
}

/* --- Comparisons with layouts --- */

static void check_fails(const struct image *image, const struct written *w, const char *phrase)
{
	struct layout l = open_image(image);
	struct sentence s = {0};
	int r = image_header_check(w->bytes, w->size, &l, &s);

	if (r != -EILSEQ || !strstr(s.text, phrase))
		fail_msg("wanted %d with '%s', got %d: %s", -EILSEQ, phrase, r, s.text);
}

static void test_header_and_layout_agree(void **state)
{
	cleanup(image_free) struct image image = dense(sample_layout());
	cleanup(written_free) struct written w = write_header(&image, NULL, 0);
	struct layout l = open_image(&image);
	struct sentence s = {0};

	(void)state;
	assert_int_equal(image_header_check(w.bytes, w.size, &l, &s), 0);
}

/* A layout that differs in one field from the one that the header was built for. */
static void test_each_difference_of_a_tensor_is_found(void **state)
{
	cleanup(image_free) struct image image = dense(sample_layout());
	cleanup(written_free) struct written w = write_header(&image, NULL, 0);

	(void)state;
	tensor_of(&image, A_BIAS)->role = LAYOUT_BUFFER;
	check_fails(&image, &w, "another role of tensor 'a.bias'");
	tensor_of(&image, A_BIAS)->role = LAYOUT_PARAM;
	tensor_of(&image, A_BIAS)->dtype = WEIGHTD_I32;
	check_fails(&image, &w, "another type or shape of tensor 'a.bias'");
	tensor_of(&image, A_BIAS)->dtype = WEIGHTD_F32;
	((uint64_t *)(tensor_of(&image, N_SAMPLE)))[0]++;
	check_fails(&image, &w, "another type or shape of tensor 'a.weight'");
	((uint64_t *)(tensor_of(&image, N_SAMPLE)))[0]--;
	tensor_of(&image, B_WEIGHT)->offset++;
	check_fails(&image, &w, "another place for tensor 'b.weight'");
	tensor_of(&image, B_WEIGHT)->offset--;
	tensor_of(&image, HEAD)->tied_to = A_BIAS;
	check_fails(&image, &w, "ties 'head.weight' to another tensor");
	tensor_of(&image, HEAD)->tied_to = A_WEIGHT;
	tensor_of(&image, LAST)->tied_to = A_WEIGHT;
	check_fails(&image, &w, "lacks 'z'");
}

static void test_other_names_are_found(void **state)
{
	struct weightd_layout *one = new_layout(0), *other = new_layout(0), *more = new_layout(0),
			      *tied = new_layout(0);

	(void)state;
	ADD(one, "a", U8, PARAM, NULL, 4);
	ADD(other, "b", U8, PARAM, NULL, 4);
	ADD(more, "a", U8, PARAM, NULL, 4);
	ADD(more, "c", U8, PARAM, NULL, 0);
	ADD(tied, "a", U8, PARAM, NULL, 4);
	assert_int_equal(weightd_layout_tie(tied, "t", 0, NULL), 0);
	cleanup(image_free) struct image a = dense(one), b = dense(other), c = dense(more),
					 t = dense(tied);
	cleanup(written_free) struct written w = write_header(&a, NULL, 0),
					     longer = write_header(&c, NULL, 0),
					     with_tie = write_header(&t, NULL, 0);

	check_fails(&b, &w, "has tensor 'a' where the layout has 'b'");
	check_fails(&c, &w, "lacks 'c'");
	check_fails(&t, &w, "lacks 't'");
	check_fails(&a, &longer, "has tensor 'c', which the layout lacks");
	check_fails(&a, &with_tie, "ties 't', which the layout lacks");
}

static void test_broken_headers_are_found(void **state)
{
	cleanup(image_free) struct image image = dense(sample_layout());
	cleanup(written_free) struct written w = write_header(&image, NULL, 0);

	(void)state;
	((char *)w.bytes)[IMAGE_HEADER_PREFIX_SIZE] = '[';
	check_fails(&image, &w, "breaks the format: its header is broken at byte 0");
	((char *)w.bytes)[IMAGE_HEADER_PREFIX_SIZE] = '{';
	((char *)w.bytes)[0]++;
	check_fails(&image, &w, "the data begin at");
	w.size = IMAGE_HEADER_PREFIX_SIZE - 1;
	check_fails(&image, &w, "has 7 bytes");
}

/* --- Metadata of other files --- */

#define TENSOR "'a':{'dtype':'U8','shape':[1],'data_offsets':[0,1]}"

static struct safetensors parse_text(const char *text)
{
	struct safetensors st = {0};
	struct sentence s;
	char copy[512];
	size_t n = strlen(text);

	assert_true(n < sizeof(copy));
	for (size_t i = 0; i <= n; i++)
		copy[i] = text[i] == '\'' ? '"' : text[i];
	if (safetensors_parse(copy, n, 1, &st, &s) != 0)
		fail_msg("refused (%s): %s", s.text, text);
	return st;
}

/* Tools copy metadata to files with other tensors. */
static void test_metadata_that_does_not_fit_is_ignored(void **state)
{
	static const char *const texts[] = {
		"{'__metadata__':{'weightd.tied':'['},",
		"{'__metadata__':{'weightd.tied':'[1]'},",
		"{'__metadata__':{'weightd.tied':''},",
		"{'__metadata__':{'weightd.tied':'{\\'b\\':1}'},",
		"{'__metadata__':{'weightd.tied':'{\\'a\\':\\'b\\'}'},",
		"{'__metadata__':{'weightd.tied':'{\\'\\':\\'a\\'}'},",
		"{'__metadata__':{'weightd.tied':'{\\'b\\':\\'a\\',\\'b\\':\\'a\\'}'},",
		"{'__metadata__':{'weightd.buffers':'{}'},",
		"{'__metadata__':{'weightd.buffers':'[\\'b\\',1,null]'},",
		"{'__metadata__':{'weightd.units':'[[\\'u\\',2]]'},",
		"{'__metadata__':{'weightd.units':'[]'},",
		"{'__metadata__':{'weightd.units':'[[\\'u\\',1,1]]'},",
		"{'__metadata__':{'weightd.units':'[[\\'u\\',-1],[\\'u\\',2]]'},",
		"{'__metadata__':{'weightd.units':'[[1,1]]'},",
		"{'__metadata__':null,",
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		char text[512];
		struct safetensors st;

		(void)snprintf(text, sizeof(text), "%s" TENSOR "}", texts[i]);
		st = parse_text(text);
		assert_int_equal(st.n_tensors, 1);
		assert_int_equal(st.n_ties, 0);
		assert_int_equal(st.tensors[0].role, WEIGHTD_PARAM);
		assert_null(st.tensors[0].unit);
		safetensors_deinit(&st);
	}
}

static void test_metadata_may_stand_behind_the_tensors(void **state)
{
	struct safetensors st = parse_text("{" TENSOR
					   ",'__metadata__':{'weightd.tied':'{\\'b\\':\\'a\\'}',"
					   "'weightd.buffers':'[\\'a\\']',"
					   "'weightd.units':'[[\\'u\\',1],[\\'\\',1]]'}}");

	(void)state;
	assert_int_equal(st.n_ties, 1);
	assert_string_equal(st.ties[0].alias, "b");
	assert_string_equal(st.ties[0].name, "a");
	assert_string_equal(st.ties[0].unit, "");
	assert_int_equal(st.tensors[0].role, WEIGHTD_BUFFER);
	assert_string_equal(st.tensors[0].unit, "u");
	safetensors_deinit(&st);
}

/* --- Sizes --- */

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

/* The data begin at the same place of a page. The newest version may have a header of another format. */
static void test_wanted_size_past_the_limit_is_congruent(void **state)
{
	static const uint64_t past = IMAGE_HEADER_PREFIX_SIZE + (uint64_t)IMAGE_HEADER_TEXT_MAX + 1;
	const uint64_t wanted[] = {past, past + 4095, UINT64_MAX};
	cleanup(image_free) struct image image = dense(sample_layout());

	(void)state;
	for (size_t i = 0; i < 3; i++) {
		cleanup(written_free) struct written w = write_header(&image, NULL, wanted[i]);

		assert_true(w.size < 4 * IMAGE_HEADER_ALIGNMENT);
		assert_int_equal(w.size % IMAGE_HEADER_ALIGNMENT,
				 wanted[i] % IMAGE_HEADER_ALIGNMENT);
		assert_int_equal(text_size(&w) + IMAGE_HEADER_PREFIX_SIZE, w.size);
	}
	cleanup(written_free) struct written most = write_header(&image, NULL, past - 1);

	assert_int_equal(most.size, past - 1);
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
		cmocka_unit_test(test_layouts_are_whole_in_headers),
		cmocka_unit_test(test_units_by_name_are_not_written),
		cmocka_unit_test(test_runs_of_units_are_short),
		cmocka_unit_test(test_header_and_layout_agree),
		cmocka_unit_test(test_each_difference_of_a_tensor_is_found),
		cmocka_unit_test(test_other_names_are_found),
		cmocka_unit_test(test_broken_headers_are_found),
		cmocka_unit_test(test_metadata_that_does_not_fit_is_ignored),
		cmocka_unit_test(test_metadata_may_stand_behind_the_tensors),
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
		cmocka_unit_test(test_wanted_size_past_the_limit_is_congruent),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

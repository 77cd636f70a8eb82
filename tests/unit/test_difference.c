#include "tests/unit/image.h"

#define N_MANY 100000

static int compare(const struct weightd_layout *a, const struct weightd_layout *b, char text[512])
{
	int r = weightd_layout_compare(a, b, text, 512);

	assert_int_equal(text[0] == '\0', r == 0);
	return r;
}

/* Both ways, since a difference has two sides. */
static void expect_alike(const struct weightd_layout *a, const struct weightd_layout *b)
{
	char text[512];

	assert_int_equal(compare(a, b, text), 0);
	assert_int_equal(compare(b, a, text), 0);
}

static void expect_different(const struct weightd_layout *a, const struct weightd_layout *b,
			     const char *text_ab, const char *text_ba)
{
	char text[512];

	assert_int_equal(compare(a, b, text), -EPROTOTYPE);
	assert_string_equal(text, text_ab);
	assert_int_equal(compare(b, a, text), -EPROTOTYPE);
	assert_string_equal(text, text_ba);
}

static void tie(struct weightd_layout *l, const char *name, uint32_t index)
{
	assert_int_equal(weightd_layout_tie(l, name, index, "elsewhere"), 0);
}

static void order_alignment_roles_and_units_make_no_difference(void **state)
{
	cleanup(weightd_layout_freep) struct weightd_layout *a = new_layout(64);
	cleanup(weightd_layout_freep) struct weightd_layout *b = new_layout(4096);

	(void)state;
	ADD(a, "w", F32, PARAM, "block.0", 3, 4);
	ADD(a, "mean", BF16, BUFFER, NULL, 4);
	ADD(a, "q", F4, PARAM, "block.1", 6);
	ADD(b, "q", F4, PARAM, NULL, 6);
	ADD(b, "w", F32, BUFFER, "block", 3, 4);
	ADD(b, "mean", BF16, PARAM, "x", 4);
	expect_alike(a, b);
}

static void a_tie_of_one_side_makes_no_difference(void **state)
{
	cleanup(weightd_layout_freep) struct weightd_layout *tied = new_layout(0);
	cleanup(weightd_layout_freep) struct weightd_layout *other_way = new_layout(0);
	cleanup(weightd_layout_freep) struct weightd_layout *twice = new_layout(0);
	cleanup(weightd_layout_freep) struct weightd_layout *first = new_layout(0);
	cleanup(weightd_layout_freep) struct weightd_layout *second = new_layout(0);
	const struct weightd_layout *all[] = {tied, other_way, twice, first, second};

	(void)state;
	ADD(tied, "embed", F32, PARAM, NULL, 8, 2);
	tie(tied, "head", 0);
	ADD(other_way, "head", F32, PARAM, NULL, 8, 2);
	tie(other_way, "embed", 0);
	ADD(twice, "embed", F32, PARAM, NULL, 8, 2);
	ADD(twice, "head", F32, PARAM, NULL, 8, 2);
	ADD(first, "embed", F32, PARAM, NULL, 8, 2);
	ADD(second, "head", F32, PARAM, NULL, 8, 2);
	for (size_t i = 0; i < ARRAY_LEN(all); i++)
		expect_alike(all[i], tied);
	expect_alike(first, other_way);
	expect_alike(second, other_way);
	expect_alike(twice, other_way);
	/* Without a tie each name has bytes of its own. */
	expect_different(first, twice, "only in the other: 'head'", "only in this layout: 'head'");
	expect_different(first, second, "only in this layout: 'embed'; only in the other: 'head'",
			 "only in this layout: 'head'; only in the other: 'embed'");
}

static void aliases_of_both_sides_hang_on_a_name_that_both_have(void **state)
{
	cleanup(weightd_layout_freep) struct weightd_layout *a = new_layout(0);
	cleanup(weightd_layout_freep) struct weightd_layout *b = new_layout(0);
	cleanup(weightd_layout_freep) struct weightd_layout *c = new_layout(0);

	(void)state;
	ADD(a, "embed", F32, PARAM, NULL, 2);
	tie(a, "here", 0);
	tie(a, "here.again", 1);
	ADD(b, "there", F32, PARAM, NULL, 2);
	tie(b, "embed", 0);
	ADD(c, "other", F32, PARAM, NULL, 2);
	tie(c, "there", 0);
	expect_alike(a, b);
	expect_alike(b, c);
	expect_different(a, c,
			 "only in this layout: 'embed', 'here', 'here.again'; "
			 "only in the other: 'other', 'there'",
			 "only in this layout: 'other', 'there'; "
			 "only in the other: 'embed', 'here', 'here.again'");
}

static void types_and_shapes_make_a_difference(void **state)
{
	cleanup(weightd_layout_freep) struct weightd_layout *a = new_layout(0);
	cleanup(weightd_layout_freep) struct weightd_layout *b = new_layout(0);

	(void)state;
	/* Each of the same number of bytes. */
	ADD(a, "float", F16, PARAM, NULL, 4, 4);
	ADD(b, "float", BF16, PARAM, NULL, 4, 4);
	ADD(a, "packed", F4, PARAM, NULL, 6);
	ADD(b, "packed", U8, PARAM, NULL, 3);
	ADD(a, "six", F6_E2M3, PARAM, NULL, 4);
	ADD(b, "six", F6_E3M2, PARAM, NULL, 4);
	ADD(a, "turned", F32, PARAM, NULL, 2, 3);
	ADD(b, "turned", F32, PARAM, NULL, 3, 2);
	ADD(a, "empty", F32, PARAM, NULL, 0, 7);
	ADD(b, "empty", F32, PARAM, NULL, 7, 0);
	expect_different(
		a, b,
		"other type or shape: 'float' is F16 [4, 4], was BF16 [4, 4], "
		"'packed' is F4 [6], was U8 [3], 'six' is F6_E2M3 [4], was F6_E3M2 [4], "
		"'turned' is F32 [2, 3], was F32 [3, 2], 'empty' is F32 [0, 7], was F32 [7, 0]",
		"other type or shape: 'float' is BF16 [4, 4], was F16 [4, 4], "
		"'packed' is U8 [3], was F4 [6], 'six' is F6_E3M2 [4], was F6_E2M3 [4], "
		"'turned' is F32 [3, 2], was F32 [2, 3], 'empty' is F32 [7, 0], was F32 [0, 7]");
}

static void a_scalar_is_not_a_vector_of_one(void **state)
{
	cleanup(weightd_layout_freep) struct weightd_layout *a = new_layout(0);
	cleanup(weightd_layout_freep) struct weightd_layout *b = new_layout(0);

	(void)state;
	assert_int_equal(weightd_layout_add(a, "step", WEIGHTD_I64, 0, NULL, WEIGHTD_PARAM, NULL),
			 0);
	ADD(b, "step", I64, PARAM, NULL, 1);
	expect_different(a, b, "other type or shape: 'step' is I64 [], was I64 [1]",
			 "other type or shape: 'step' is I64 [1], was I64 []");
	expect_alike(a, a);
}

static void five_names_of_a_kind_are_told_and_the_rest_is_counted(void **state)
{
	cleanup(weightd_layout_freep) struct weightd_layout *a = numbered_layout(9);
	cleanup(weightd_layout_freep) struct weightd_layout *b = numbered_layout(2);
	char text[512];

	(void)state;
	assert_int_equal(compare(a, b, text), -EPROTOTYPE);
	assert_string_equal(text,
			    "only in this layout: 'layers.2.weight', 'layers.3.weight', "
			    "'layers.4.weight', 'layers.5.weight', 'layers.6.weight' and 2 more");
}

/* Names as long as they may be, in bytes that a terminal does not print. */
static void a_text_stays_in_its_room_and_tells_how_many(void **state)
{
	cleanup(weightd_layout_freep) struct weightd_layout *a = new_layout(0);
	cleanup(weightd_layout_freep) struct weightd_layout *b = new_layout(0);
	char name[WEIGHTD_TENSOR_NAME_MAX + 1];

	(void)state;
	ADD(a, "w", F32, PARAM, NULL, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18,
	    19, 20, 0);
	ADD(b, "w", F32, PARAM, NULL, 1);
	for (int i = 0; i < 20; i++) {
		memset(name, '\n', sizeof(name) - 1);
		name[0] = (char)('a' + i);
		name[1] = '\x1b';
		name[sizeof(name) - 1] = '\0';
		assert_int_equal(weightd_layout_add(i % 2 ? a : b, name, WEIGHTD_U8, 0, NULL,
						    WEIGHTD_PARAM, NULL),
				 0);
	}
	for (size_t size = 0; size <= 1024; size++) {
		char *text = malloc(size + 1); /* so that ASan sees a byte too many */

		text[size] = 'x';
		assert_int_equal(weightd_layout_compare(a, b, text, size), -EPROTOTYPE);
		assert_int_equal(text[size], 'x');
		if (size > 0)
			assert_true(strlen(text) < size);
		if (size >= 160) {
			assert_non_null(strstr(text, "only in this layout"));
			assert_non_null(strstr(text, "only in the other"));
			assert_non_null(strstr(text, "10 tensors") ?: strstr(text, " more"));
		}
		for (const char *p = text; size > 0 && *p; p++)
			assert_true(*p >= ' ' && *p <= '~');
		free(text);
	}
	assert_int_equal(weightd_layout_compare(a, b, NULL, 0), -EPROTOTYPE);
}

/* A search through a table for each name would take minutes here. */
static void a_hundred_thousand_tensors_are_compared_at_once(void **state)
{
	cleanup(weightd_layout_freep) struct weightd_layout *a = numbered_layout(N_MANY);
	cleanup(weightd_layout_freep) struct weightd_layout *b = new_layout(64);
	char text[512];

	(void)state;
	for (uint32_t i = N_MANY; i-- > 0;) {
		struct weightd_tensor t = {.size = sizeof(t)};

		assert_int_equal(weightd_layout_tensor(a, i, &t), 0);
		if (weightd_layout_add(b, t.name, t.dtype, t.n_dims, t.shape, WEIGHTD_BUFFER,
				       NULL) != 0)
			fail_msg("tensor %u is refused", i);
	}
	for (uint32_t i = 0; i < N_MANY; i++) {
		char name[32];

		(void)snprintf(name, sizeof(name), "alias.%u", i);
		if (weightd_layout_tie(b, name, 7, NULL) != 0)
			fail_msg("alias %u is refused", i);
	}
	expect_alike(a, b);
	ADD(b, "more", U8, PARAM, NULL, 1);
	assert_int_equal(compare(a, b, text), -EPROTOTYPE);
	assert_string_equal(text, "only in the other: 'more'");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(order_alignment_roles_and_units_make_no_difference),
		cmocka_unit_test(a_tie_of_one_side_makes_no_difference),
		cmocka_unit_test(aliases_of_both_sides_hang_on_a_name_that_both_have),
		cmocka_unit_test(types_and_shapes_make_a_difference),
		cmocka_unit_test(a_scalar_is_not_a_vector_of_one),
		cmocka_unit_test(five_names_of_a_kind_are_told_and_the_rest_is_counted),
		cmocka_unit_test(a_text_stays_in_its_room_and_tells_how_many),
		cmocka_unit_test(a_hundred_thousand_tensors_are_compared_at_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

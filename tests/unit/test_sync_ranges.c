/*
 * Ranges, compared with a model that has a bool for each byte of a small buffer; and malformed JSON
 * ranges.
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

#include "ipc/base/num.h"
#include "server/sync/base/ranges.h"

#define SPAN 120
#define ROUNDS 400

struct model {
	bool has[SPAN];
};

static unsigned draw(unsigned n)
{
	return (unsigned)(random() % n);
}

static uint64_t count(const struct model *m)
{
	uint64_t n = 0;

	for (size_t i = 0; i < SPAN; i++)
		n += m->has[i];
	return n;
}

static void assert_is_set(const struct ranges *r)
{
	for (size_t i = 0; i < r->n; i++) {
		assert_int_not_equal(r->at[i].size, 0);
		if (i > 0)
			assert_true(r->at[i].offset > r->at[i - 1].offset + r->at[i - 1].size);
	}
}

static void assert_equals_model(const struct ranges *r, const struct model *m)
{
	struct model of = {0};

	assert_is_set(r);
	for (size_t i = 0; i < r->n; i++)
		for (uint64_t j = 0; j < r->at[i].size; j++)
			of.has[r->at[i].offset + j] = true;
	assert_memory_equal(&of, m, sizeof(of));
	assert_int_equal(ranges_total(r), count(m));
}

static void draw_set(struct ranges *r, struct model *m)
{
	ranges_init(r);
	*m = (struct model){0};
	for (unsigned n = draw(12); n > 0; n--) {
		unsigned offset = draw(SPAN), size = draw(SPAN - offset < 9 ? SPAN - offset : 9);

		assert_int_equal(ranges_add(r, offset, size), 0);
		memset(&m->has[offset], true, size);
		assert_equals_model(r, m);
	}
}

static void sets_do_what_sets_of_bytes_do(void **state)
{
	(void)state;
	srandom(5);
	for (unsigned i = 0; i < ROUNDS; i++) {
		struct ranges a, b, sum;
		struct model in_a, in_b, in_sum, in_rest;

		draw_set(&a, &in_a);
		draw_set(&b, &in_b);
		for (size_t j = 0; j < SPAN; j++) {
			in_sum.has[j] = in_a.has[j] || in_b.has[j];
			in_rest.has[j] = in_a.has[j] && !in_b.has[j];
		}
		ranges_init(&sum);
		assert_int_equal(ranges_add_all(&sum, &a), 0);
		assert_equals_model(&sum, &in_a);
		assert_int_equal(ranges_add_all(&sum, &b), 0);
		assert_equals_model(&sum, &in_sum);
		assert_int_equal(ranges_remove_all(&a, &b), 0);
		assert_equals_model(&a, &in_rest);
		assert_int_equal(ranges_remove_all(&sum, &sum), 0);
		assert_int_equal(sum.n, 0);
		ranges_deinit(&a);
		ranges_deinit(&b);
		ranges_deinit(&sum);
	}
}

static void a_prefix_has_the_first_bytes_of_a_set(void **state)
{
	(void)state;
	srandom(6);
	for (unsigned i = 0; i < ROUNDS; i++) {
		struct ranges all, prefix;
		struct model in_all, in_prefix = {0};
		unsigned n_bytes = draw(SPAN), n = 0;

		draw_set(&all, &in_all);
		for (size_t j = 0; j < SPAN && n < n_bytes; j++)
			n += in_prefix.has[j] = in_all.has[j];
		ranges_init(&prefix);
		assert_int_equal(ranges_prefix(&all, n_bytes, &prefix), 0);
		assert_equals_model(&prefix, &in_prefix);
		assert_int_equal(ranges_prefix(&prefix, n_bytes, &prefix), 0);
		assert_equals_model(&prefix, &in_prefix);
		ranges_deinit(&all);
		ranges_deinit(&prefix);
	}
}

static void json_brings_a_set_back(void **state)
{
	(void)state;
	srandom(7);
	for (unsigned i = 0; i < ROUNDS; i++) {
		struct ranges before, after;
		struct model m;
		json_t *json;

		draw_set(&before, &m);
		json = ranges_to_json(&before);
		ranges_init(&after);
		assert_int_equal(ranges_from_json(json, SPAN, &after), 0);
		assert_equals_model(&after, &m);
		json_decref(json);
		ranges_deinit(&before);
		ranges_deinit(&after);
	}
}

static void the_end_of_all_numbers_is_the_end(void **state)
{
	struct ranges r;

	(void)state;
	ranges_init(&r);
	assert_int_equal(ranges_add(&r, UINT64_MAX, 1), -EOVERFLOW);
	assert_int_equal(ranges_add(&r, 2, UINT64_MAX - 1), -EOVERFLOW);
	assert_int_equal(ranges_add(&r, UINT64_MAX, 0), 0);
	assert_int_equal(r.n, 0);
	assert_int_equal(ranges_add(&r, UINT64_MAX - 1, 1), 0);
	assert_int_equal(ranges_add(&r, 0, UINT64_MAX - 1), 0);
	assert_int_equal(r.n, 1);
	assert_int_equal(ranges_total(&r), UINT64_MAX);
	ranges_deinit(&r);
}

/* Ranges of 10 bytes, 100 from start to start. */
static void fill(struct ranges *r, unsigned n)
{
	ranges_init(r);
	for (unsigned i = 0; i < n; i++)
		assert_int_equal(ranges_add(r, (uint64_t)100 * i, 10), 0);
}

static void a_set_of_too_many_closes_its_smallest_gaps(void **state)
{
	struct ranges r;

	(void)state;
	fill(&r, RANGES_MAX);
	assert_int_equal(r.n, RANGES_MAX);
	assert_int_equal(ranges_add(&r, 1050, 10), 0); /* halves a gap */
	assert_int_equal(r.n, RANGES_MAX);
	assert_is_set(&r);
	assert_int_equal(ranges_total(&r), 10 * RANGES_MAX + 50);
	assert_int_equal(r.at[10].offset, 1000);
	assert_int_equal(r.at[10].size, 60);
	ranges_deinit(&r);
}

static void two_full_sets_make_one(void **state)
{
	struct ranges a, b, all;

	(void)state;
	fill(&a, RANGES_MAX);
	ranges_init(&b);
	for (unsigned i = 0; i < RANGES_MAX; i++)
		assert_int_equal(ranges_add(&b, (uint64_t)100 * i + 60, 10), 0);
	ranges_init(&all);
	assert_int_equal(ranges_add_all(&all, &a), 0);
	assert_int_equal(ranges_add_all(&all, &b), 0);
	assert_int_equal(all.n, RANGES_MAX);
	assert_is_set(&all);
	assert_int_equal(ranges_remove_all(&a, &all), 0); /* a superset of both */
	assert_int_equal(ranges_remove_all(&b, &all), 0);
	assert_int_equal(a.n + b.n, 0);
	ranges_deinit(&a);
	ranges_deinit(&b);
	ranges_deinit(&all);
}

static void what_was_removed_never_comes_back_for_lack_of_room(void **state)
{
	struct ranges r, holes;

	(void)state;
	fill(&holes, RANGES_MAX);
	ranges_init(&r);
	assert_int_equal(ranges_add(&r, 0, 200 * RANGES_MAX), 0);
	assert_int_equal(ranges_remove_all(&r, &holes), 0);
	assert_int_equal(r.n, RANGES_MAX);
	ranges_deinit(&holes);
	ranges_init(&holes);
	assert_int_equal(ranges_add(&holes, 50, 1), 0);
	assert_int_equal(ranges_remove_all(&r, &holes), -E2BIG);
	assert_int_equal(r.n, RANGES_MAX);
	assert_int_equal(ranges_total(&r), 190 * RANGES_MAX);
	ranges_deinit(&r);
	ranges_deinit(&holes);
}

static void assert_refused(const json_t *json, const char *text)
{
	struct ranges r;
	int got;

	ranges_init(&r);
	assert_int_equal(ranges_add(&r, 3, 4), 0);
	got = ranges_from_json(json, 100, &r);
	if (got != -EBADMSG || r.n != 1 || ranges_total(&r) != 4)
		fail_msg("%s: returned %d with %zu ranges", text, got, r.n);
	ranges_deinit(&r);
}

static void json_of_others_is_refused_if_it_is_no_set(void **state)
{
	static const char *const texts[] = {
		"null",
		"7",
		"\"[]\"",
		"{}",
		"{\"0\":[0,1]}",
		"[0,1]",
		"[null]",
		"[[]]",
		"[[0]]",
		"[[0,1,2]]",
		"[[0,\"1\"]]",
		"[[\"0\",1]]",
		"[[0,1.0]]",
		"[[0.0,1]]",
		"[[0,true]]",
		"[[0,null]]",
		"[[[0],[1]]]",
		"[{\"offset\":0,\"size\":1}]",
		"[[0,0]]",
		"[[100,0]]",
		"[[-1,2]]",
		"[[1,-1]]",
		"[[0,101]]",
		"[[100,1]]",
		"[[101,1]]",
		"[[99,2]]",
		"[[1,9223372036854775807]]",
		"[[9223372036854775807,9223372036854775807]]",
		"[[-9223372036854775808,-9223372036854775808]]",
		"[[10,5],[0,5]]",
		"[[0,5],[4,1]]",
		"[[0,5],[0,5]]",
		"[[0,1],[2,1],[2,1]]",
		"[[0,1],[5,0]]",
	};

	(void)state;
	assert_refused(NULL, "nothing");
	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		json_t *json = json_loads(texts[i], JSON_DECODE_ANY, NULL);

		assert_non_null(json);
		assert_refused(json, texts[i]);
		json_decref(json);
	}
}

static void json_of_others_has_a_limit(void **state)
{
	json_t *json = json_array();
	struct ranges r;

	(void)state;
	ranges_init(&r);
	for (unsigned i = 0; i < RANGES_MAX; i++)
		assert_int_equal(json_array_append_new(json, json_pack("[ii]", 2 * i, 1)), 0);
	assert_int_equal(ranges_from_json(json, INT64_MAX, &r), 0);
	assert_int_equal(r.n, RANGES_MAX);
	assert_int_equal(json_array_append_new(json, json_pack("[ii]", 2 * RANGES_MAX, 1)), 0);
	assert_int_equal(ranges_from_json(json, INT64_MAX, &r), -EBADMSG);
	assert_int_equal(r.n, RANGES_MAX);
	json_decref(json);
	ranges_deinit(&r);
}

static void touching_ranges_of_others_are_one(void **state)
{
	json_t *json = json_pack("[[ii][ii]]", 0, 5, 5, 95);
	struct ranges r;

	(void)state;
	ranges_init(&r);
	assert_int_equal(ranges_from_json(json, 100, &r), 0);
	assert_int_equal(r.n, 1);
	assert_int_equal(ranges_total(&r), 100);
	json_decref(json);
	ranges_deinit(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sets_do_what_sets_of_bytes_do),
		cmocka_unit_test(a_prefix_has_the_first_bytes_of_a_set),
		cmocka_unit_test(json_brings_a_set_back),
		cmocka_unit_test(the_end_of_all_numbers_is_the_end),
		cmocka_unit_test(a_set_of_too_many_closes_its_smallest_gaps),
		cmocka_unit_test(two_full_sets_make_one),
		cmocka_unit_test(what_was_removed_never_comes_back_for_lack_of_room),
		cmocka_unit_test(json_of_others_is_refused_if_it_is_no_set),
		cmocka_unit_test(json_of_others_has_a_limit),
		cmocka_unit_test(touching_ranges_of_others_are_one),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

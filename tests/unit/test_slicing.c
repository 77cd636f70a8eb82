/* Slicings: ranks have each element of a dimension once, or if they share heads of keys, equally often. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ipc/reshard/slicing_read.h"

#define ELEMENTS_MAX 512

/* Adds the ranges of a rank to the counts of elements. Returns how many elements the rank has. */
static uint64_t count_elements(const struct slicing_range *ranges, unsigned n_ranges, uint64_t n,
			       unsigned *counts)
{
	uint64_t size = 0, end = 0;

	for (unsigned i = 0; i < n_ranges; i++) {
		assert_true(ranges[i].size > 0 && (i == 0 || ranges[i].first > end));
		end = ranges[i].first + ranges[i].size;
		assert_true(end <= n);
		for (uint64_t k = ranges[i].first; k < end; k++)
			counts[k]++;
		size += ranges[i].size;
	}
	return size;
}

/* True if they share it. */
static bool check_world(const struct slicing *s, const struct slicing_rule *rule, uint64_t n,
			unsigned world)
{
	unsigned counts[ELEMENTS_MAX] = {0}, n_ranges;
	struct slicing_range ranges[SLICING_PARTS_MAX];
	char why[SLICING_WHY_SIZE] = "";
	uint64_t first_size = 0;

	for (unsigned rank = 0; rank < world; rank++) {
		int r = slicing_cut(s, rule, n, rank, world, ranges, &n_ranges, why);
		uint64_t size;

		if (r < 0) {
			assert_int_equal(r, -EINVAL);
			assert_true(rank == 0 && why[0]);
			return false;
		}
		size = count_elements(ranges, n_ranges, n, counts);
		if (rank == 0)
			first_size = size;
		assert_true(size == first_size ||
			    (rule->parts[0] == SLICING_RAGGED && size < first_size));
	}
	for (uint64_t k = 0; k < n; k++)
		assert_true(counts[k] == 1 ||
			    (s->kv_heads < world && counts[k] == world / s->kv_heads));
	return true;
}

static void ranks_have_each_element(void **state)
{
	static const struct slicing_rule rules[] = {
		{"*", 0, {SLICING_EVEN}},
		{"*", 0, {SLICING_EVEN, SLICING_EVEN}},
		{"*", 0, {SLICING_RAGGED}},
		{"*", 0, {SLICING_HEADS}},
		{"*", 0, {SLICING_KV_HEADS}},
		{"*", 0, {SLICING_HEADS, SLICING_KV_HEADS, SLICING_KV_HEADS}},
	};
	const struct slicing s = {.heads = 12, .kv_heads = 4};
	unsigned n_shared[6] = {0};

	(void)state;
	for (unsigned i = 0; i < 6; i++)
		for (unsigned world = 1; world <= 16; world++)
			for (uint64_t n = 0; n <= 240; n++)
				if (check_world(&s, &rules[i], n, world))
					n_shared[i]++;
	/* Heads are shared for multiples of 12, 4 and 20, by ranks that divide these numbers, or are multiples of 4. */
	assert_int_equal(n_shared[2], 16 * 241);
	assert_int_equal(n_shared[3], 21 * 6);
	assert_int_equal(n_shared[4], 61 * 6);
	assert_int_equal(n_shared[5], 13 * 4);
}

static void the_first_rule_wins(void **state)
{
	static const char text[] = "*.q_proj.weight whole\n\nuse = llama\n# a comment\n*.q* 1";
	char why[SLICING_WHY_SIZE];
	struct slicing s;
	unsigned line;

	(void)state;
	assert_int_equal(slicing_read(text, strlen(text), &s, &line, why), 0);
	assert_int_equal(slicing_find(&s, "model.layers.0.self_attn.q_proj.weight")->dim,
			 SLICING_WHOLE);
	assert_int_equal(slicing_find(&s, "model.layers.0.self_attn.q_proj.bias")->dim, 1);
	assert_int_equal(slicing_find(&s, "model.layers.0.self_attn.o_proj.weight")->parts[0],
			 SLICING_HEADS);
	assert_null(slicing_find(&s, "model.layers.0.self_attn.o_proj.scales"));
	slicing_deinit(&s);
}

static void many_rules_are_an_error(void **state)
{
	static const char rule[] = "a 0\n";
	const size_t size = (SLICING_RULES_MAX + 1) * (sizeof(rule) - 1);
	char *text = malloc(size + 1), why[SLICING_WHY_SIZE];
	struct slicing s;
	unsigned line;

	(void)state;
	for (size_t i = 0; i < size; i += sizeof(rule) - 1)
		memcpy(text + i, rule, sizeof(rule));
	assert_int_equal(slicing_read(text, size, &s, &line, why), -EBADMSG);
	assert_int_equal(line, SLICING_RULES_MAX + 1);
	assert_int_equal(slicing_read(text, size - sizeof(rule) + 1, &s, &line, why), 0);
	slicing_deinit(&s);
	free(text);
}

static void ready_rules_are_in_order(void **state)
{
	(void)state;
	for (size_t i = 0; slicing_ready_at(i); i++) {
		assert_ptr_equal(slicing_ready_find(slicing_ready_at(i)->model_type),
				 slicing_ready_at(i));
		assert_true(i == 0 || strcmp(slicing_ready_at(i - 1)->model_type,
					     slicing_ready_at(i)->model_type) < 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ranks_have_each_element),
		cmocka_unit_test(the_first_rule_wins),
		cmocka_unit_test(many_rules_are_an_error),
		cmocka_unit_test(ready_rules_are_in_order),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

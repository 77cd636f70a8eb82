/* Touched parts of intervals, against a map with a byte for each element. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libclient/train/touched.h"

#define N 64 /* elements */
#define N_ROUNDS 2000

struct scene {
	struct plan_interval intervals[N];
	struct touched touched;
	bool map[N];
};

/* Random runs of elements, as few or as many as chance has it; no two are adjacent. */
static void scene_init(struct scene *s)
{
	s->touched = (struct touched){.intervals = s->intervals};
	for (uint64_t i = 0; i < N; i++) {
		s->map[i] = rand() % 8 < 4;
		if (!s->map[i])
			continue;
		if (i > 0 && s->map[i - 1])
			s->intervals[s->touched.n - 1].end++;
		else
			s->intervals[s->touched.n++] = (struct plan_interval){i, i + 1};
	}
}

static void test_parts_are_the_touched_elements_in_order(void **state)
{
	(void)state;
	srand(1);
	for (int round = 0; round < N_ROUNDS; round++) {
		struct plan_interval within = {(uint64_t)(rand() % N), 0}, part;
		bool seen[N] = {false};
		struct scene s;
		uint64_t at = within.begin, n = 0;

		scene_init(&s);
		within.end = within.begin + (uint64_t)(rand() % (int)(N - within.begin + 1));
		for (part = touched_first(&s.touched, within); part.begin < part.end;
		     part = touched_next(&s.touched, within, part)) {
			assert_true(part.begin >= at && part.end <= within.end);
			for (at = part.begin; at < part.end; at++, n++)
				seen[at] = true;
		}
		for (uint64_t i = 0; i < N; i++)
			assert_int_equal(seen[i], s.map[i] && i >= within.begin && i < within.end);
		assert_int_equal(touched_count(&s.touched, within), n);
	}
}

static void test_everything_is_touched_without_a_list(void **state)
{
	struct plan_interval within = {32, 96}, part = touched_first(NULL, within);

	(void)state;
	assert_int_equal(part.begin, 32);
	assert_int_equal(part.end, 96);
	part = touched_next(NULL, within, part);
	assert_int_equal(part.begin, part.end);
	assert_int_equal(touched_count(NULL, within), 64);
}

static void test_nothing_is_touched_with_an_empty_list(void **state)
{
	struct touched none = {.n = 0};
	struct plan_interval part = touched_first(&none, (struct plan_interval){0, 64});

	(void)state;
	assert_int_equal(part.begin, part.end);
	assert_int_equal(touched_count(&none, (struct plan_interval){0, 64}), 0);
}

/* Pieces anywhere, at places with room between them. */
static uint32_t pieces_draw(struct plan_piece *pieces)
{
	uint64_t at = 0;
	uint32_t n = 1 + (uint32_t)(rand() % 4);

	for (uint32_t i = 0; i < n; i++) {
		uint64_t begin = (uint64_t)(rand() % N);
		uint64_t end = begin + (uint64_t)(rand() % (int)(N - begin + 1));

		at += (uint64_t)(rand() % 3);
		pieces[i] = (struct plan_piece){.interval = {begin, end}, .at = at};
		at += end - begin;
	}
	return n;
}

static void test_a_walk_has_the_touched_parts_of_pieces_by_place(void **state)
{
	(void)state;
	srand(2);
	for (int round = 0; round < N_ROUNDS; round++) {
		struct plan_piece list[4], part;
		struct plan_pieces pieces = {.pieces = list, .n = pieces_draw(list)};
		struct touched_parts w;
		struct plan_interval places = {(uint64_t)(rand() % N), (uint64_t)(rand() % (4 * N))};
		uint64_t last = 0;
		uint32_t n = 0, n_expected = 0;
		struct scene s;

		scene_init(&s);
		w = touched_parts(round % 4 ? &s.touched : NULL, &pieces);
		w.places = places;
		for (uint32_t i = 0; i < pieces.n; i++)
			for (uint64_t e = list[i].interval.begin; e < list[i].interval.end; e++) {
				uint64_t place = list[i].at + e - list[i].interval.begin;

				n_expected += (round % 4 == 0 || s.map[e]) &&
					      place >= places.begin && place < places.end;
			}
		while (touched_parts_next(&w, &part)) {
			assert_true(part.interval.begin < part.interval.end && part.at >= last);
			last = part.at + (part.interval.end - part.interval.begin);
			for (uint64_t e = part.interval.begin; e < part.interval.end; e++)
				assert_true(round % 4 == 0 || s.map[e]);
			assert_true(part.at >= places.begin && last <= places.end);
			n += (uint32_t)(part.interval.end - part.interval.begin);
		}
		assert_int_equal(n, n_expected);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_parts_are_the_touched_elements_in_order),
		cmocka_unit_test(test_everything_is_touched_without_a_list),
		cmocka_unit_test(test_nothing_is_touched_with_an_empty_list),
		cmocka_unit_test(test_a_walk_has_the_touched_parts_of_pieces_by_place),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

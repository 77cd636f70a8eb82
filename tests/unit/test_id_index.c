/* Indexes by id: the order of ids, whatever the order in which they come and go. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "server/base/id_index.h"

#define N 1000

static int items[N];

static void assert_ids(const struct id_index *index, uint64_t first, uint64_t step, size_t n)
{
	assert_int_equal(index->n, n);
	for (size_t i = 0; i < n; i++) {
		uint64_t id = first + i * step;

		assert_int_equal(index->entries[i].id, id);
		assert_ptr_equal(index->entries[i].item, &items[id]);
	}
}

static void entries_are_in_the_order_of_ids(void **state)
{
	struct id_index index = {0};

	(void)state;
	/* 7 has no factor in common with N: each id once. */
	for (unsigned i = 0; i < N; i++)
		assert_int_equal(id_index_add(&index, i * 7 % N, &items[i * 7 % N]), 0);
	assert_ids(&index, 0, 1, N);
	for (unsigned i = 0; i < N; i++)
		if (i * 7 % N % 2)
			id_index_remove(&index, i * 7 % N);
	assert_ids(&index, 0, 2, N / 2);
	id_index_deinit(&index);
}

static void a_position_is_behind_an_id_that_need_not_be_there(void **state)
{
	struct id_index index = {0};

	(void)state;
	assert_int_equal(id_index_after(&index, 0), 0);
	for (unsigned id = 10; id <= 30; id += 10)
		assert_int_equal(id_index_add(&index, id, &items[id]), 0);
	assert_int_equal(id_index_after(&index, 0), 0);
	assert_int_equal(id_index_after(&index, 9), 0);
	assert_int_equal(id_index_after(&index, 10), 1);
	assert_int_equal(id_index_after(&index, 25), 2);
	assert_int_equal(id_index_after(&index, 30), 3);
	assert_int_equal(id_index_after(&index, UINT64_MAX), 3);
	id_index_deinit(&index);
}

static void removing_an_id_that_is_not_there_does_nothing(void **state)
{
	struct id_index index = {0};

	(void)state;
	id_index_remove(&index, 5);
	assert_int_equal(id_index_add(&index, 5, &items[5]), 0);
	id_index_remove(&index, 4);
	id_index_remove(&index, 6);
	assert_ids(&index, 5, 1, 1);
	id_index_remove(&index, 5);
	assert_int_equal(index.n, 0);
	id_index_deinit(&index);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(entries_are_in_the_order_of_ids),
		cmocka_unit_test(a_position_is_behind_an_id_that_need_not_be_there),
		cmocka_unit_test(removing_an_id_that_is_not_there_does_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * The handle that was exported last under a key is found, until there is no room for it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "bpf/probe/gpu_handle.h"

static struct gpu_handle handle_of(uint64_t kind, uint64_t handle, uid_t uid, uint64_t number)
{
	struct gpu_handle exported = {
		.key.kind = kind, .cause.number = number, .uid = uid, .size = UINT64_MAX};

	memcpy(exported.key.bytes, &handle, sizeof(handle));
	return exported;
}

static void add(struct gpu_handles *e, uint64_t kind, uint64_t handle, uid_t uid, uint64_t number)
{
	const struct gpu_handle exported = handle_of(kind, handle, uid, number);

	gpu_handles_add(e, &exported);
}

/* The number of what was exported under it, or 0. */
static uint64_t found(const struct gpu_handles *e, uint64_t kind, uint64_t handle)
{
	const struct gpu_handle wanted = handle_of(kind, handle, 0, 0);
	const struct gpu_handle *exported = gpu_handles_find(e, &wanted.key);

	return exported ? exported->cause.number : 0;
}

static void test_the_last_of_a_key_is_found(void **state)
{
	struct gpu_handles e;

	(void)state;
	gpu_handles_init(&e);
	assert_int_equal(found(&e, 1, 7), 0);
	add(&e, 1, 7, 0, 1);
	add(&e, 2, 7, 0, 2);
	add(&e, 1, 8, 0, 3);
	assert_int_equal(found(&e, 1, 7), 1);
	assert_int_equal(found(&e, 2, 7), 2);
	add(&e, 1, 7, 5, 4); /* its memory was freed, and another's has the handle now */
	assert_int_equal(found(&e, 1, 7), 4);
	assert_int_equal(e.n, 3);
	gpu_handles_deinit(&e);
	assert_int_equal(e.n, 0);
}

static void test_what_was_removed_is_found_no_more(void **state)
{
	const struct gpu_handle gone = handle_of(1, 7, 0, 0);
	struct gpu_handles e;

	(void)state;
	gpu_handles_init(&e);
	add(&e, 1, 7, 0, 1);
	gpu_handles_remove(&e, &gone.key);
	gpu_handles_remove(&e, &gone.key);
	assert_int_equal(found(&e, 1, 7), 0);
	assert_int_equal(e.n, 0);
	gpu_handles_deinit(&e);
}

static void test_no_user_takes_the_room_of_others(void **state)
{
	struct gpu_handles e;

	(void)state;
	gpu_handles_init(&e);
	add(&e, 1, 0, 0, 1);
	for (uint64_t i = 1; i <= 2 * GPU_HANDLES_MAX; i++)
		add(&e, 1, i, 1000, 1 + i);
	assert_int_equal(e.n, GPU_HANDLES_PER_USER_MAX + 1);
	assert_int_equal(found(&e, 1, 0), 1);
	assert_int_equal(found(&e, 1, 2 * GPU_HANDLES_MAX), 2 * GPU_HANDLES_MAX + 1);
	assert_int_equal(found(&e, 1, 2 * GPU_HANDLES_MAX - GPU_HANDLES_PER_USER_MAX), 0);
	gpu_handles_deinit(&e);
}

static void test_the_oldest_goes_where_there_is_no_room(void **state)
{
	struct gpu_handles e;

	(void)state;
	gpu_handles_init(&e);
	for (uint64_t i = 1; i <= GPU_HANDLES_MAX + 10; i++)
		add(&e, 1, i, (uid_t)i, i);
	assert_int_equal(e.n, GPU_HANDLES_MAX);
	assert_int_equal(found(&e, 1, 10), 0);
	assert_int_equal(found(&e, 1, 11), 11);
	gpu_handles_deinit(&e);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_last_of_a_key_is_found),
		cmocka_unit_test(test_what_was_removed_is_found_no_more),
		cmocka_unit_test(test_no_user_takes_the_room_of_others),
		cmocka_unit_test(test_the_oldest_goes_where_there_is_no_room),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

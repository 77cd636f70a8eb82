/*
 * What was exported last under a key is found, until there is no room for it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "bpf/probe/gpu_handle.h"

static struct export export_of(uint64_t kind, uint64_t handle, uid_t uid, uint64_t number)
{
	struct export export = {
		.key.kind = kind, .origin.number = number, .uid = uid, .size = UINT64_MAX};

	memcpy(export.key.bytes, &handle, sizeof(handle));
	return export;
}

static void add(struct exports *e, uint64_t kind, uint64_t handle, uid_t uid, uint64_t number)
{
	const struct export export = export_of(kind, handle, uid, number);

	exports_add(e, &export);
}

/* The number of what was exported under it, or 0. */
static uint64_t found(const struct exports *e, uint64_t kind, uint64_t handle)
{
	const struct export wanted = export_of(kind, handle, 0, 0);
	const struct export *export = exports_find(e, &wanted.key);

	return export ? export->origin.number : 0;
}

static void test_the_last_of_a_key_is_found(void **state)
{
	struct exports e;

	(void)state;
	exports_init(&e);
	assert_int_equal(found(&e, 1, 7), 0);
	add(&e, 1, 7, 0, 1);
	add(&e, 2, 7, 0, 2);
	add(&e, 1, 8, 0, 3);
	assert_int_equal(found(&e, 1, 7), 1);
	assert_int_equal(found(&e, 2, 7), 2);
	add(&e, 1, 7, 5, 4); /* its memory was freed, and another's has the handle now */
	assert_int_equal(found(&e, 1, 7), 4);
	assert_int_equal(e.n, 3);
	exports_deinit(&e);
	assert_int_equal(e.n, 0);
}

static void test_what_was_removed_is_found_no_more(void **state)
{
	const struct export gone = export_of(1, 7, 0, 0);
	struct exports e;

	(void)state;
	exports_init(&e);
	add(&e, 1, 7, 0, 1);
	exports_remove(&e, &gone.key);
	exports_remove(&e, &gone.key);
	assert_int_equal(found(&e, 1, 7), 0);
	assert_int_equal(e.n, 0);
	exports_deinit(&e);
}

static void test_no_user_takes_the_room_of_others(void **state)
{
	struct exports e;

	(void)state;
	exports_init(&e);
	add(&e, 1, 0, 0, 1);
	for (uint64_t i = 1; i <= 2 * EXPORTS_MAX; i++)
		add(&e, 1, i, 1000, 1 + i);
	assert_int_equal(e.n, EXPORTS_OF_USER_MAX + 1);
	assert_int_equal(found(&e, 1, 0), 1);
	assert_int_equal(found(&e, 1, 2 * EXPORTS_MAX), 2 * EXPORTS_MAX + 1);
	assert_int_equal(found(&e, 1, 2 * EXPORTS_MAX - EXPORTS_OF_USER_MAX), 0);
	exports_deinit(&e);
}

static void test_the_oldest_goes_where_there_is_no_room(void **state)
{
	struct exports e;

	(void)state;
	exports_init(&e);
	for (uint64_t i = 1; i <= EXPORTS_MAX + 10; i++)
		add(&e, 1, i, (uid_t)i, i);
	assert_int_equal(e.n, EXPORTS_MAX);
	assert_int_equal(found(&e, 1, 10), 0);
	assert_int_equal(found(&e, 1, 11), 11);
	exports_deinit(&e);
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

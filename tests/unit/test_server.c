/* The server as a whole: freed memory goes back to the kernel once most of many objects of clients are gone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "server/state/server.h"

static struct server server;
static unsigned n_trims;

int __wrap_malloc_trim(size_t pad);
int __wrap_malloc_trim(size_t pad)
{
	(void)pad;
	n_trims++;
	return 1;
}

static int set_up(void **state)
{
	(void)state;
	server = (struct server){0};
	n_trims = 0;
	return 0;
}

static void count(int n, int change)
{
	for (int i = 0; i < n; i++)
		server_count_object(&server, change);
}

static void memory_is_returned_once_most_of_many_objects_are_gone(void **state)
{
	(void)state;
	count(8000, 1);
	count(6999, -1);
	assert_int_equal(n_trims, 0);
	count(1, -1);
	assert_int_equal(n_trims, 1);
	count(500, -1);
	assert_int_equal(n_trims, 1); /* the next call is worth it below an eighth of what is left */
	count(500, -1);
	assert_int_equal(n_trims, 2);
}

static void few_objects_are_not_worth_it(void **state)
{
	(void)state;
	for (int i = 0; i < 100; i++) {
		count(100, 1);
		count(100, -1);
	}
	assert_int_equal(n_trims, 0);
}

#define TEST(name) cmocka_unit_test_setup(name, set_up)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(memory_is_returned_once_most_of_many_objects_are_gone),
		TEST(few_objects_are_not_worth_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

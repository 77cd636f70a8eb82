/* Waits for memory that is being freed: behind what was begun before them, and nothing else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/base/freeing.h"

static struct freeings freeings;
static struct freeing a, b, c;
static unsigned n_over;
static struct freeing_wait *last_over;

static int set_up(void **state)
{
	(void)state;
	freeings_init(&freeings);
	a = b = c = (struct freeing){0};
	n_over = 0;
	last_over = NULL;
	return 0;
}

static void wait_over(struct freeing_wait *wait)
{
	n_over++;
	last_over = wait;
}

static bool await(struct freeing_wait *wait, uid_t uid)
{
	return freeing_await(&freeings, wait, uid, "host", wait_over);
}

static void end(struct freeing *freeing)
{
	freeing_end(freeing);
	freeings_wake(&freeings);
}

static void nothing_is_waited_for_where_nothing_is_being_freed(void **state)
{
	struct freeing_wait wait;

	(void)state;
	assert_false(await(&wait, FREEING_BY_ALL));
	freeing_begin(&freeings, &a, 1, "cuda:0");
	assert_false(await(&wait, FREEING_BY_ALL)); /* on another device */
	freeing_begin(&freeings, &b, 1, "host");
	assert_false(await(&wait, 2));
	assert_false(freeing_wait_stop(&wait));
	end(&b);
	end(&a);
	assert_false(await(&wait, FREEING_BY_ALL));
	assert_int_equal(n_over, 0);
}

static void a_wait_ends_with_the_last_of_what_was_begun_before_it(void **state)
{
	struct freeing_wait wait;

	(void)state;
	freeing_begin(&freeings, &a, 1, "host");
	freeing_begin(&freeings, &b, 2, "host");
	assert_true(await(&wait, FREEING_BY_ALL));
	freeing_begin(&freeings, &c, 1, "host");
	end(&b); /* in another order */
	assert_int_equal(n_over, 0);
	end(&c);
	assert_int_equal(n_over, 0);
	end(&a);
	assert_int_equal(n_over, 1);
	assert_ptr_equal(last_over, &wait);
	assert_false(freeing_wait_stop(&wait));
}

static void a_user_waits_for_its_own_alone(void **state)
{
	struct freeing_wait wait;

	(void)state;
	freeing_begin(&freeings, &a, 1, "host");
	freeing_begin(&freeings, &b, 2, "host");
	assert_true(await(&wait, 2));
	end(&b);
	assert_int_equal(n_over, 1);
	end(&a);
	assert_int_equal(n_over, 1);
}

static void a_wait_that_was_stopped_is_not_called(void **state)
{
	struct freeing_wait first, second;

	(void)state;
	freeing_begin(&freeings, &a, 1, "host");
	assert_true(await(&first, 1));
	assert_true(await(&second, 1));
	assert_true(freeing_wait_stop(&first));
	assert_false(freeing_wait_stop(&first));
	freeing_end(&a);
	assert_int_equal(n_over, 0); /* its charge is not refunded yet */
	assert_true(freeing_wait_stop(&second)); /* also now */
	freeings_wake(&freeings);
	assert_int_equal(n_over, 0);
}

static struct freeing_wait again;

static void wait_again(struct freeing_wait *wait)
{
	n_over++;
	assert_true(freeing_await(&freeings, wait, FREEING_BY_ALL, "host", wait_over));
}

static void a_wait_may_be_begun_again_when_it_is_over(void **state)
{
	(void)state;
	freeing_begin(&freeings, &a, 1, "host");
	assert_true(freeing_await(&freeings, &again, 1, "host", wait_again));
	freeing_begin(&freeings, &b, 2, "host");
	end(&a);
	assert_int_equal(n_over, 1);
	end(&b);
	assert_int_equal(n_over, 2);
}

static void the_name_of_the_device_may_end_before(void **state)
{
	char device[] = "host";
	struct freeing_wait wait;

	(void)state;
	freeing_begin(&freeings, &a, 1, device);
	device[0] = 'x';
	assert_true(await(&wait, 1));
	end(&a);
	assert_int_equal(n_over, 1);
}

static void what_never_began_may_end(void **state)
{
	(void)state;
	end(&a);
	freeing_begin(&freeings, &a, 1, "host");
	end(&a);
	end(&a);
	assert_int_equal(n_over, 0);
}

#define TEST(name) cmocka_unit_test_setup(name, set_up)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(nothing_is_waited_for_where_nothing_is_being_freed),
		TEST(a_wait_ends_with_the_last_of_what_was_begun_before_it),
		TEST(a_user_waits_for_its_own_alone),
		TEST(a_wait_that_was_stopped_is_not_called),
		TEST(a_wait_may_be_begun_again_when_it_is_over),
		TEST(the_name_of_the_device_may_end_before),
		TEST(what_never_began_may_end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

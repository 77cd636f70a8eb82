/*
 * Tests structs of callers from older and newer releases
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "libclient/train/plan/given.h"

/* A struct as the first release had it, and as two later ones extended it. */
struct first {
	size_t size;
	uint32_t a;
	uint32_t b;
};

struct second {
	size_t size;
	uint32_t a, b;
	uint64_t c;
};

struct third {
	size_t size;
	uint32_t a, b;
	uint64_t c, d;
};

#define MIN GIVEN_MIN(struct first, b)
#define COPY(given, ret) given_copy(given, MIN, ret, sizeof(*(ret)), "struct of_the_test")
#define RETURN(ret, result) given_return(ret, MIN, result, sizeof(*(result)), "struct of_the_test")

static void members_that_an_older_caller_lacks_are_zero(void **state)
{
	struct {
		struct first given;
		uint64_t behind;
	} memory = {.given = {.size = sizeof(struct first), .a = 1, .b = 2}, .behind = UINT64_MAX};
	struct second ours;

	(void)state;
	memset(&ours, 0xff, sizeof(ours));
	assert_int_equal(COPY(&memory.given, &ours), 0);
	assert_int_equal(ours.a, 1);
	assert_int_equal(ours.b, 2);
	assert_int_equal(ours.c, 0);
}

static void a_newer_caller_may_not_use_what_is_unknown(void **state)
{
	struct third given = {.size = sizeof(given), .a = 1, .b = 2, .c = 3};
	struct second ours;

	(void)state;
	assert_int_equal(COPY(&given, &ours), 0);
	assert_int_equal(ours.c, 3);
	given.d = (uint64_t)1 << 63;
	assert_int_equal(COPY(&given, &ours), -E2BIG);
	assert_non_null(strstr(weightd_train_error(), "struct of_the_test has an option"));
}

static void a_size_below_that_of_the_first_release_was_not_set(void **state)
{
	const size_t sizes[] = {0, 1, sizeof(size_t), MIN - 1, 65537, SIZE_MAX};
	struct first given = {.a = 1};
	struct second ours;

	(void)state;
	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		given.size = sizes[i];
		assert_int_equal(COPY(&given, &ours), -EINVAL);
		assert_non_null(strstr(weightd_train_error(),
				       "the size of struct of_the_test was not set"));
		assert_int_equal(RETURN(&given, &ours), -EINVAL);
		assert_int_equal(given.a, 1);
	}
}

static void an_older_caller_gets_the_members_that_it_has(void **state)
{
	struct {
		struct first ret;
		uint64_t behind;
	} memory = {.ret.size = sizeof(struct first), .behind = UINT64_MAX};
	const struct second result = {.a = 1, .b = 2, .c = 3};

	(void)state;
	assert_int_equal(RETURN(&memory.ret, &result), 0);
	assert_int_equal(memory.ret.size, sizeof(struct first));
	assert_int_equal(memory.ret.a, 1);
	assert_int_equal(memory.ret.b, 2);
	assert_true(memory.behind == UINT64_MAX);
}

static void a_newer_caller_gets_zero_for_what_is_unknown(void **state)
{
	struct third ret;
	const struct second result = {.a = 1, .b = 2, .c = 3};

	(void)state;
	memset(&ret, 0xff, sizeof(ret));
	ret.size = sizeof(ret);
	assert_int_equal(RETURN(&ret, &result), 0);
	assert_int_equal(ret.size, sizeof(ret));
	assert_int_equal(ret.c, 3);
	assert_int_equal(ret.d, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(members_that_an_older_caller_lacks_are_zero),
		cmocka_unit_test(a_newer_caller_may_not_use_what_is_unknown),
		cmocka_unit_test(a_size_below_that_of_the_first_release_was_not_set),
		cmocka_unit_test(an_older_caller_gets_the_members_that_it_has),
		cmocka_unit_test(a_newer_caller_gets_zero_for_what_is_unknown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

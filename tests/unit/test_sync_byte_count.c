/* Byte counts: an unknown count is not zero. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>

#include "server/sync/base/json_packet.h"
#include "server/sync/state/byte_count.h"

/* The number, or -1 for null. */
static json_int_t shown(const struct byte_count *t, const char *key)
{
	cleanup(json_freep) json_t *row = json_object();
	const json_t *n;

	byte_count_show(t, row);
	n = json_object_get(row, key);
	assert_true(json_is_null(n) || json_is_integer(n));
	return json_is_null(n) ? -1 : json_integer_value(n);
}

static void assert_shown(const struct byte_count *t, json_int_t planned, json_int_t bytes,
			 json_int_t kernel)
{
	assert_int_equal(shown(t, "planned"), planned);
	assert_int_equal(shown(t, "bytes"), bytes);
	assert_int_equal(shown(t, "kernel"), kernel);
}

static void add(struct byte_count *t, uint64_t planned, json_t *in)
{
	byte_count_add(t, planned, in);
	json_decref(in);
}

static void test_nothing_that_moved_is_none(void **state)
{
	struct byte_count t = {0};

	(void)state;
	assert_shown(&t, 0, 0, 0);
	add(&t, 0, json_null());
	assert_shown(&t, 0, 0, 0);
	assert_int_equal(shown(&t, "broken"), 0);
}

static void test_what_engines_say_adds_up(void **state)
{
	struct byte_count t = {0};

	(void)state;
	add(&t, 7, json_pack("{s:i, s:i}", "bytes", 7, "kernel", 7));
	add(&t, 5, json_pack("{s:i, s:i}", "bytes", 5, "kernel", 5));
	assert_shown(&t, 12, 12, 12);
}

/* With TLS an engine reports less. */
static void test_the_payload_is_what_an_engine_says_or_all(void **state)
{
	struct byte_count t = {0};

	(void)state;
	add(&t, 7, json_pack("{s:i, s:i}", "bytes", 7, "kernel", 7));
	assert_int_equal(shown(&t, "payload"), 7);
	add(&t, 5, json_pack("{s:i, s:i, s:i}", "payload", 5, "bytes", 9, "kernel", 9));
	assert_int_equal(shown(&t, "payload"), 12);
	assert_shown(&t, 12, 16, 16);
	add(&t, 5, json_pack("{s:n, s:i, s:i}", "payload", "bytes", 9, "kernel", 9));
	assert_int_equal(shown(&t, "payload"), -1);
	assert_shown(&t, 17, 25, 25);
}

/* Even if all other counts are known. */
static void test_what_nobody_knows_of_some_is_not_known_of_all(void **state)
{
	struct byte_count nccl = {0}, nonsense = {0};

	(void)state;
	add(&nccl, 7, json_pack("{s:i, s:i}", "bytes", 7, "kernel", 7));
	add(&nccl, 9, json_pack("{s:i, s:n}", "bytes", 9, "kernel"));
	add(&nccl, 7, json_pack("{s:i, s:i}", "bytes", 7, "kernel", 7));
	assert_shown(&nccl, 23, 23, -1);
	add(&nonsense, 7, json_pack("{s:I, s:I}", "bytes", INT64_MAX, "kernel", (json_int_t)-1));
	add(&nonsense, 7, json_pack("{s:I, s:I}", "bytes", INT64_MAX, "kernel", INT64_MAX));
	assert_shown(&nonsense, 14, -1, -1);
}

static void test_bytes_of_epochs_that_broke_are_not_none(void **state)
{
	struct byte_count t = {0};

	(void)state;
	byte_count_add_broken(&t);
	assert_shown(&t, -1, -1, -1);
	assert_int_equal(shown(&t, "payload"), -1);
	assert_int_equal(shown(&t, "broken"), 1);
	add(&t, 7, json_pack("{s:i, s:i}", "bytes", 7, "kernel", 7));
	assert_shown(&t, 7, 7, 7);
	assert_int_equal(shown(&t, "broken"), 1);
}

static void test_what_was_traced_comes_late_and_once(void **state)
{
	struct byte_count t = {0};

	(void)state;
	assert_int_equal(shown(&t, "traced"), -1);
	assert_int_equal(shown(&t, "untraced"), 0);
	byte_count_add_traced(&t, 7); /* no bytes were counted */
	assert_int_equal(shown(&t, "traced"), -1);
	add(&t, 7, json_pack("{s:i, s:i}", "bytes", 7, "kernel", 7));
	add(&t, 0, json_null());
	add(&t, 5, json_pack("{s:i, s:i}", "bytes", 5, "kernel", 5));
	assert_int_equal(shown(&t, "traced"), -1);
	assert_int_equal(shown(&t, "untraced"), 2);
	byte_count_add_traced(&t, 5);
	assert_int_equal(shown(&t, "traced"), 5);
	assert_int_equal(shown(&t, "untraced"), 1);
	byte_count_add_traced(&t, 7);
	byte_count_add_traced(&t, 9);
	assert_int_equal(shown(&t, "traced"), 12);
	assert_int_equal(shown(&t, "untraced"), 0);
}

static void test_a_row_that_was_shown_is_amended_alike(void **state)
{
	cleanup(json_freep) json_t *row = json_object();
	struct byte_count t = {0};

	(void)state;
	add(&t, 7, json_pack("{s:i, s:i}", "bytes", 7, "kernel", 7));
	add(&t, 5, json_pack("{s:i, s:i}", "bytes", 5, "kernel", 5));
	byte_count_show(&t, row);
	for (unsigned i = 0; i < 3; i++)
		byte_count_amend(row, 6);
	assert_int_equal(json_integer_value(json_object_get(row, "traced")), 12);
	assert_int_equal(json_integer_value(json_object_get(row, "untraced")), 0);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_nothing_that_moved_is_none),
		cmocka_unit_test(test_what_engines_say_adds_up),
		cmocka_unit_test(test_the_payload_is_what_an_engine_says_or_all),
		cmocka_unit_test(test_what_nobody_knows_of_some_is_not_known_of_all),
		cmocka_unit_test(test_bytes_of_epochs_that_broke_are_not_none),
		cmocka_unit_test(test_what_was_traced_comes_late_and_once),
		cmocka_unit_test(test_a_row_that_was_shown_is_amended_alike),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Rates of the last seconds: what a person reads of a load that stalls, recovers, slows down or loses bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "libclient/weightctl/output/rate.h"

#define SECOND UINT64_C(1000000000)
#define STEPS_PER_SECOND 20

static uint64_t now = 1000 * SECOND, done;
static struct rate rate;

static void run(unsigned seconds, uint64_t per_second)
{
	for (unsigned i = 0; i < seconds * STEPS_PER_SECOND; i++) {
		now += SECOND / STEPS_PER_SECOND;
		done += per_second / STEPS_PER_SECOND;
		rate_update(&rate, now, done);
	}
}

/* Bytes a second. */
static uint64_t measure(void)
{
	uint64_t ns, bytes = rate_bytes(&rate, now, &ns);

	return ns ? bytes * SECOND / ns : 0;
}

static int setup(void **state)
{
	(void)state;
	done = 5000;
	rate_begin(&rate, now, done);
	return 0;
}

static void bytes_before_the_beginning_do_not_count(void **state)
{
	(void)state;
	assert_int_equal(measure(), 0);
	run(1, 2000);
	assert_int_equal(measure(), 2000);
}

static void a_rate_is_that_of_the_last_seconds(void **state)
{
	(void)state;
	run(600, 1000000);
	assert_int_equal(measure(), 1000000);
	run(8, 1000);
	assert_int_equal(measure(), 1000);
	run(8, 5000000);
	assert_int_equal(measure(), 5000000);
}

static void a_stall_shows_after_five_seconds_and_ends_with_the_next_byte(void **state)
{
	(void)state;
	run(30, 1000);
	run(4, 0);
	assert_int_equal(rate_stalled_ns(&rate, now), 0);
	run(60, 0);
	assert_int_equal(rate_stalled_ns(&rate, now), 64 * SECOND);
	run(1, 2000);
	assert_int_equal(rate_stalled_ns(&rate, now), 0);
	assert_in_range(measure(), 1900, 2000);
}

static void a_beginning_without_a_byte_is_a_stall(void **state)
{
	(void)state;
	run(7, 0);
	assert_int_equal(rate_stalled_ns(&rate, now), 7 * SECOND);
}

/* As of a push that begins another epoch. */
static void bytes_that_are_lost_begin_anew(void **state)
{
	(void)state;
	run(10, 1000);
	done = 2000;
	rate_update(&rate, now, done);
	assert_int_equal(measure(), 0);
	run(2, 3000);
	assert_int_equal(measure(), 3000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(bytes_before_the_beginning_do_not_count, setup),
		cmocka_unit_test_setup(a_rate_is_that_of_the_last_seconds, setup),
		cmocka_unit_test_setup(a_stall_shows_after_five_seconds_and_ends_with_the_next_byte,
				       setup),
		cmocka_unit_test_setup(a_beginning_without_a_byte_is_a_stall, setup),
		cmocka_unit_test_setup(bytes_that_are_lost_begin_anew, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

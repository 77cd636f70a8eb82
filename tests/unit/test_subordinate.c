/* Subordinate users: the ranges of a file, and the user that each number is counted as. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "server/base/subordinate.h"
#include "server/state/quota.h"

static void use(const char *text)
{
	struct subordinates s;

	assert_int_equal(subordinates_parse(text, strlen(text), &s), 0);
	subordinates_use(&s);
}

static int tear_down(void **state)
{
	(void)state;
	use("");
	return 0;
}

static void users_of_a_range_count_as_its_owner(void **state)
{
	(void)state;
	use("4002:300000:10\n4001:100000:65536\n4001:500000:1\n");
	assert_int_equal(subordinate_payer(99999), 99999);
	assert_int_equal(subordinate_payer(100000), 4001);
	assert_int_equal(subordinate_payer(165535), 4001);
	assert_int_equal(subordinate_payer(165536), 165536);
	assert_int_equal(subordinate_payer(300009), 4002);
	assert_int_equal(subordinate_payer(300010), 300010);
	assert_int_equal(subordinate_payer(500000), 4001);
	assert_int_equal(subordinate_payer(0), 0);
	assert_int_equal(subordinate_payer((uid_t)-1), (uid_t)-1);
	assert_int_equal(subordinate_payer(4001), 4001);
}

static void owners_may_be_names_that_exist(void **state)
{
	(void)state;
	use("nobody:100000:65536\nno-such-user:200000:65536");
	assert_int_equal(subordinate_payer(100001), 65534);
	assert_int_equal(subordinate_payer(200001), 200001);
}

static void ranges_of_root_are_those_of_other_peoples_containers(void **state)
{
	(void)state;
	use("root:100000:65536\n0:200000:65536\n");
	assert_int_equal(subordinate_payer(100001), 100001);
	assert_int_equal(subordinate_payer(200001), 200001);
}

static void lines_without_a_range_are_left_out(void **state)
{
	(void)state;
	use("\n# a comment\n4001\n4001:100000\n4001:100000:\n4001::5\n4001:x:5\n4001:100000:65536:1\n4001:-5:10\n"
	    "4001:0:65536\n4001:4294967295:1\n4001:100000:0\n:100000:5\n4001:700000:5");
	assert_int_equal(subordinate_payer(100000), 100000);
	assert_int_equal(subordinate_payer(700004), 4001);
}

static void a_range_ends_before_the_number_that_is_no_user(void **state)
{
	(void)state;
	use("4001:4294967000:18446744073709551615\n");
	assert_int_equal(subordinate_payer(4294967294u), 4001);
	assert_int_equal(subordinate_payer((uid_t)-1), (uid_t)-1);
}

static void of_ranges_that_overlap_the_first_line_counts(void **state)
{
	(void)state;
	use("4001:100000:100\n4002:100050:100\n4002:100100:100\n");
	assert_int_equal(subordinate_payer(100099), 4001);
	assert_int_equal(subordinate_payer(100100), 4002);
}

static void an_owner_counts_as_itself(void **state)
{
	(void)state;
	use("4001:4000:100\n4002:100000:10\n100005:200000:10\n");
	assert_int_equal(subordinate_payer(4001), 4001);
	assert_int_equal(subordinate_payer(4002), 4002);
	assert_int_equal(subordinate_payer(100005), 100005);
	assert_int_equal(subordinate_payer(200005), 100005);
}

static void charges_of_a_range_are_those_of_one_user(void **state)
{
	struct charge a = {0}, b = {0}, c = {0};
	uint64_t limits[QUOTA_KINDS];
	struct quota q;

	(void)state;
	use("4001:100000:65536\n");
	quota_init(&q);
	memcpy(limits, quota_default_limits, sizeof(limits));
	limits[QUOTA_BUFFERS] = 2;
	quota_set_limits(&q, limits, NULL, 0);
	assert_int_equal(quota_charge(&q, 100001, QUOTA_BUFFERS, 1, &a), 0);
	assert_int_equal(quota_charge(&q, 100002, QUOTA_BUFFERS, 1, &b), 0);
	assert_int_equal(quota_charge(&q, 100003, QUOTA_BUFFERS, 1, &c), QUOTA_EXCEEDED);
	assert_int_equal(quota_used(&q, 4001, QUOTA_BUFFERS), 2);
	assert_int_equal(quota_used(&q, 100009, QUOTA_BUFFERS), 2);
	assert_int_equal(quota_n_users(&q, QUOTA_BUFFERS), 1);
	use(""); /* charges stay where they are */
	assert_int_equal(quota_charge(&q, 100003, QUOTA_BUFFERS, 1, &c), 0);
	assert_int_equal(quota_used(&q, 4001, QUOTA_BUFFERS), 2);
	quota_refund(&a);
	quota_refund(&b);
	quota_refund(&c);
	quota_deinit(&q);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(users_of_a_range_count_as_its_owner, tear_down),
		cmocka_unit_test_teardown(owners_may_be_names_that_exist, tear_down),
		cmocka_unit_test_teardown(ranges_of_root_are_those_of_other_peoples_containers,
					  tear_down),
		cmocka_unit_test_teardown(lines_without_a_range_are_left_out, tear_down),
		cmocka_unit_test_teardown(a_range_ends_before_the_number_that_is_no_user, tear_down),
		cmocka_unit_test_teardown(of_ranges_that_overlap_the_first_line_counts, tear_down),
		cmocka_unit_test_teardown(an_owner_counts_as_itself, tear_down),
		cmocka_unit_test_teardown(charges_of_a_range_are_those_of_one_user, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

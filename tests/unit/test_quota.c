/* Quotas: what is charged is refunded to the unit, and one user's use is not another's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/quota.h"

#define ALICE 4001
#define BOB 4002

static struct quota quota;

static int set_up(void **state)
{
	(void)state;
	quota_init(&quota);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	quota_deinit(&quota); /* asserts that no account is left */
	return 0;
}

static int charge(uid_t uid, enum quota_kind kind, uint64_t amount, struct charge *c)
{
	*c = (struct charge){0};
	return quota_charge(&quota, uid, kind, amount, c);
}

static unsigned count_accounts(void)
{
	struct account *a;
	unsigned n = 0;

	list_for_each(a, &quota.accounts, link)
		n++;
	return n;
}

static void the_limit_itself_is_allowed_and_one_more_is_not(void **state)
{
	struct charge all, one;

	(void)state;
	quota.limits[QUOTA_BYTES] = 1000;
	assert_int_equal(charge(ALICE, QUOTA_BYTES, 1001, &one), QUOTA_EXCEEDED);
	assert_null(one.account);
	assert_int_equal(charge(ALICE, QUOTA_BYTES, 1000, &all), 0);
	assert_int_equal(charge(ALICE, QUOTA_BYTES, 1, &one), QUOTA_EXCEEDED);
	assert_int_equal(quota_left(&quota, ALICE, QUOTA_BYTES), 0);
	quota_refund(&all);
}

static void charges_of_one_add_up_to_the_limit(void **state)
{
	struct charge charges[4];

	(void)state;
	quota.limits[QUOTA_SESSIONS] = 3;
	for (int i = 0; i < 3; i++) {
		assert_int_equal(quota_left(&quota, ALICE, QUOTA_SESSIONS), 3 - i);
		assert_int_equal(charge(ALICE, QUOTA_SESSIONS, 1, &charges[i]), 0);
	}
	assert_int_equal(charge(ALICE, QUOTA_SESSIONS, 1, &charges[3]), QUOTA_EXCEEDED);
	quota_refund(&charges[1]);
	assert_int_equal(charge(ALICE, QUOTA_SESSIONS, 1, &charges[1]), 0);
	assert_int_equal(charge(ALICE, QUOTA_SESSIONS, 1, &charges[3]), QUOTA_EXCEEDED);
	for (int i = 0; i < 3; i++)
		quota_refund(&charges[i]);
}

static void amounts_near_2_to_the_64_do_not_wrap(void **state)
{
	struct charge most, more;

	(void)state;
	quota.limits[QUOTA_BYTES] = UINT64_MAX;
	assert_int_equal(charge(ALICE, QUOTA_BYTES, UINT64_MAX - 1, &most), 0);
	assert_int_equal(charge(ALICE, QUOTA_BYTES, 2, &more), QUOTA_EXCEEDED);
	assert_int_equal(charge(ALICE, QUOTA_BYTES, UINT64_MAX, &more), QUOTA_EXCEEDED);
	assert_int_equal(charge(ALICE, QUOTA_BYTES, 1, &more), 0);
	assert_int_equal(quota_left(&quota, ALICE, QUOTA_BYTES), 0);
	quota_refund(&more);
	quota_refund(&most);
}

static void a_lowered_limit_refuses_what_is_new_and_keeps_what_is_there(void **state)
{
	struct charge held, more;

	(void)state;
	quota.limits[QUOTA_BUFFERS] = 10;
	assert_int_equal(charge(ALICE, QUOTA_BUFFERS, 5, &held), 0);
	quota.limits[QUOTA_BUFFERS] = 4;
	assert_int_equal(quota_left(&quota, ALICE, QUOTA_BUFFERS), 0);
	assert_int_equal(charge(ALICE, QUOTA_BUFFERS, 1, &more), QUOTA_EXCEEDED);
	quota_refund(&held);
}

static void users_do_not_share_a_limit(void **state)
{
	struct charge alice, bob, more;

	(void)state;
	quota.limits[QUOTA_LEASES] = 2;
	assert_int_equal(charge(ALICE, QUOTA_LEASES, 2, &alice), 0);
	assert_int_equal(charge(BOB, QUOTA_LEASES, 2, &bob), 0);
	assert_int_equal(charge(BOB, QUOTA_LEASES, 1, &more), QUOTA_EXCEEDED);
	quota_refund(&alice);
	assert_int_equal(quota_left(&quota, ALICE, QUOTA_LEASES), 2);
	assert_int_equal(quota_left(&quota, BOB, QUOTA_LEASES), 0);
	quota_refund(&bob);
}

static void kinds_do_not_share_a_limit(void **state)
{
	struct charge charges[QUOTA_KINDS], more;

	(void)state;
	for (int k = 0; k < QUOTA_KINDS; k++)
		quota.limits[k] = 7;
	for (int k = 0; k < QUOTA_KINDS; k++)
		assert_int_equal(charge(ALICE, (enum quota_kind)k, 7, &charges[k]), 0);
	for (int k = 0; k < QUOTA_KINDS; k++) {
		quota_refund(&charges[k]);
		assert_int_equal(quota_left(&quota, ALICE, (enum quota_kind)k), 7);
		if (k + 1 < QUOTA_KINDS)
			assert_int_equal(charge(ALICE, (enum quota_kind)(k + 1), 1, &more),
					 QUOTA_EXCEEDED);
	}
}

static void every_kind_has_a_limit_from_the_start(void **state)
{
	(void)state;
	for (int k = 0; k < QUOTA_KINDS; k++)
		assert_int_not_equal(quota_left(&quota, ALICE, (enum quota_kind)k), 0);
}

static void an_account_lives_as_long_as_something_is_charged_to_it(void **state)
{
	struct charge a, b, nothing;

	(void)state;
	assert_int_equal(count_accounts(), 0);
	assert_int_equal(charge(ALICE, QUOTA_BYTES, 10, &a), 0);
	assert_int_equal(charge(ALICE, QUOTA_BYTES, 0, &nothing), 0); /* it counts, with no bytes */
	assert_int_equal(charge(BOB, QUOTA_BYTES, 10, &b), 0);
	assert_int_equal(count_accounts(), 2);
	quota_refund(&a);
	assert_int_equal(count_accounts(), 2);
	quota_refund(&nothing);
	assert_int_equal(count_accounts(), 1);
	quota_refund(&b);
	assert_int_equal(count_accounts(), 0);
}

static void a_refusal_leaves_no_account_behind(void **state)
{
	struct charge c;

	(void)state;
	quota.limits[QUOTA_BYTES] = 0;
	assert_int_equal(charge(ALICE, QUOTA_BYTES, 1, &c), QUOTA_EXCEEDED);
	assert_int_equal(count_accounts(), 0);
}

static void refunding_twice_or_nothing_is_harmless(void **state)
{
	struct charge held, c = {0};

	(void)state;
	quota_refund(&c);
	quota.limits[QUOTA_BYTES] = 10;
	assert_int_equal(charge(ALICE, QUOTA_BYTES, 4, &held), 0);
	assert_int_equal(charge(ALICE, QUOTA_BYTES, 5, &c), 0);
	quota_refund(&c);
	quota_refund(&c);
	assert_int_equal(quota_left(&quota, ALICE, QUOTA_BYTES), 6);
	quota_refund(&held);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(the_limit_itself_is_allowed_and_one_more_is_not),
		TEST(charges_of_one_add_up_to_the_limit),
		TEST(amounts_near_2_to_the_64_do_not_wrap),
		TEST(a_lowered_limit_refuses_what_is_new_and_keeps_what_is_there),
		TEST(users_do_not_share_a_limit),
		TEST(kinds_do_not_share_a_limit),
		TEST(every_kind_has_a_limit_from_the_start),
		TEST(an_account_lives_as_long_as_something_is_charged_to_it),
		TEST(a_refusal_leaves_no_account_behind),
		TEST(refunding_twice_or_nothing_is_harmless),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

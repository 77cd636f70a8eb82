/* Quotas: what is charged is refunded to the unit, and one user's use is not another's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/state/quota.h"
#include "server/state/share.h"

#define ALICE 4001
#define BOB 4002
#define CAROL 4003

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

/* --- Limits of one user --- */

static void set_overrides(const struct quota_override *overrides, unsigned n)
{
	const size_t size = n * sizeof(*overrides);
	struct quota_override *copy = size ? malloc(size) : NULL;
	uint64_t limits[QUOTA_KINDS];

	if (copy)
		memcpy(copy, overrides, size);
	assert_true(copy || n == 0);
	for (int k = 0; k < QUOTA_KINDS; k++)
		limits[k] = 10;
	quota_set_limits(&quota, limits, copy, n);
}

static void an_override_is_for_one_user_and_one_kind(void **state)
{
	const struct quota_override overrides[] = {
		{ALICE, 1u << QUOTA_BYTES | 1u << QUOTA_LEASES, {[QUOTA_BYTES] = 3}},
		{BOB, 1u << QUOTA_BYTES, {[QUOTA_BYTES] = UINT64_MAX}},
	};
	struct charge alice, bob, more;

	(void)state;
	set_overrides(overrides, 2);
	assert_int_equal(quota_limit(&quota, ALICE, QUOTA_BYTES), 3);
	assert_int_equal(quota_limit(&quota, ALICE, QUOTA_LEASES), 0);
	assert_int_equal(quota_limit(&quota, ALICE, QUOTA_BUFFERS), 10);
	assert_int_equal(quota_limit(&quota, CAROL, QUOTA_BYTES), 10);
	assert_int_equal(quota_left(&quota, ALICE, QUOTA_BYTES), 3); /* without an account */
	assert_int_equal(charge(ALICE, QUOTA_BYTES, 4, &more), QUOTA_EXCEEDED);
	assert_int_equal(charge(ALICE, QUOTA_BYTES, 3, &alice), 0);
	assert_int_equal(charge(ALICE, QUOTA_LEASES, 1, &more), QUOTA_EXCEEDED);
	assert_int_equal(charge(BOB, QUOTA_BYTES, UINT64_MAX, &bob), 0);
	assert_int_equal(charge(CAROL, QUOTA_BYTES, 11, &more), QUOTA_EXCEEDED);
	quota_refund(&alice);
	quota_refund(&bob);
}

static void new_limits_hold_at_once_and_take_nothing_away(void **state)
{
	const struct quota_override tight = {ALICE, 1u << QUOTA_BYTES, {[QUOTA_BYTES] = 4}};
	struct charge held, more;

	(void)state;
	quota.limits[QUOTA_BYTES] = 8;
	assert_int_equal(charge(ALICE, QUOTA_BYTES, 8, &held), 0);
	set_overrides(&tight, 1);
	assert_int_equal(charge(ALICE, QUOTA_BYTES, 1, &more), QUOTA_EXCEEDED);
	quota_refund(&held);
	assert_int_equal(quota_left(&quota, ALICE, QUOTA_BYTES), 4);
	set_overrides(NULL, 0);
	assert_int_equal(quota_left(&quota, ALICE, QUOTA_BYTES), 10);
}

/* --- Charges that cannot be refused --- */

static void what_must_not_be_lost_is_charged_beyond_the_limit(void **state)
{
	struct charge found, more, last;

	(void)state;
	quota.limits[QUOTA_BYTES] = 100;
	found = more = last = (struct charge){0};
	assert_int_equal(quota_charge_anyway(&quota, ALICE, QUOTA_BYTES, 99, &found), 0);
	assert_int_equal(quota_charge_anyway(&quota, ALICE, QUOTA_BYTES, 50, &more), 0);
	assert_int_equal(quota_left(&quota, ALICE, QUOTA_BYTES), 0);
	assert_int_equal(charge(ALICE, QUOTA_BYTES, 1, &last), QUOTA_EXCEEDED);
	quota_refund(&more);
	assert_int_equal(charge(ALICE, QUOTA_BYTES, 1, &last), 0); /* to the limit, and no further */
	assert_int_equal(charge(ALICE, QUOTA_BYTES, 1, &more), QUOTA_EXCEEDED);
	quota_refund(&found);
	quota_refund(&last);
	assert_int_equal(count_accounts(), 0);
}

static void a_charge_beyond_the_limit_is_refunded_exactly(void **state)
{
	struct charge found = {0};

	(void)state;
	quota.limits[QUOTA_DESCRIPTORS] = 0;
	assert_int_equal(quota_charge_anyway(&quota, BOB, QUOTA_DESCRIPTORS, 7, &found), 0);
	assert_int_equal(list_first(&quota.accounts, struct account, link)->used[QUOTA_DESCRIPTORS],
			 7);
	quota.limits[QUOTA_DESCRIPTORS] = 9;
	assert_int_equal(quota_left(&quota, BOB, QUOTA_DESCRIPTORS), 2);
	quota_refund(&found);
	assert_int_equal(quota_left(&quota, BOB, QUOTA_DESCRIPTORS), 9);
	assert_int_equal(count_accounts(), 0);
}

/* --- Shares --- */

static void the_limit_is_half_of_what_there_is(void **state)
{
	(void)state;
	quota_set_wholes(&quota, 65536, 6000);
	assert_int_equal(quota_limit(&quota, ALICE, QUOTA_DESCRIPTORS), 3000);
	assert_int_equal(quota_limit(&quota, ALICE, QUOTA_VERSIONS), 3000);
	assert_int_equal(quota_limit(&quota, ALICE, QUOTA_BUFFERS), 1500);
	assert_int_equal(quota_limit(&quota, ALICE, QUOTA_LEASES), 65536);
	assert_int_equal(quota_limit(&quota, ALICE, QUOTA_SESSIONS), 4096); /* half were 22326 */
	assert_true(quota_limit(&quota, ALICE, QUOTA_BYTES) == UINT64_MAX);
	quota_set_wholes(&quota, 65536, 0);
	assert_int_equal(quota_limit(&quota, ALICE, QUOTA_DESCRIPTORS), 3000); /* without a store */
	quota_set_wholes(&quota, 65536, 100);
	assert_int_equal(quota_limit(&quota, ALICE, QUOTA_DESCRIPTORS), 64); /* no less */
}

static void few_open_files_are_shared_by_what_is_kept_and_by_connections(void **state)
{
	(void)state;
	quota_set_wholes(&quota, 1024, 6000);
	assert_int_equal(quota.wholes[QUOTA_DESCRIPTORS], 512);
	assert_int_equal(quota.wholes[QUOTA_SESSIONS], 384);
	assert_int_equal(quota_limit(&quota, ALICE, QUOTA_DESCRIPTORS), 256);
	assert_int_equal(quota_limit(&quota, ALICE, QUOTA_SESSIONS), 192);
	quota_set_wholes(&quota, UINT64_MAX, 1000000);
	assert_int_equal(quota_limit(&quota, ALICE, QUOTA_DESCRIPTORS), 500000);
	assert_int_equal(quota_limit(&quota, ALICE, QUOTA_SESSIONS), 4096);
}

static void an_override_may_be_a_share_too(void **state)
{
	const struct quota_override share = {ALICE,
					     1u << QUOTA_DESCRIPTORS,
					     {[QUOTA_DESCRIPTORS] = QUOTA_AUTO}};

	(void)state;
	quota_set_wholes(&quota, 65536, 600);
	set_overrides(&share, 1);
	assert_int_equal(quota_limit(&quota, ALICE, QUOTA_DESCRIPTORS), 300);
	assert_int_equal(quota_limit(&quota, BOB, QUOTA_DESCRIPTORS), 10);
}

static void shares_add_up_to_no_more_than_the_whole(void **state)
{
	static const uint64_t wholes[] = {0, 1, 15, 16, 17, 63, 160, 6000, UINT64_MAX};

	(void)state;
	for (size_t i = 0; i < sizeof(wholes) / sizeof(wholes[0]); i++) {
		uint64_t whole = wholes[i], least = share_least(whole);

		for (unsigned n = 1; n <= SHARE_USERS; n++) {
			assert_true(share_of(whole, n) <= whole / n);
			assert_true(share_of(whole, n) >= least);
		}
		assert_int_equal(share_of(whole, SHARE_USERS + 1), least);
		assert_true(share_of(whole, 0) == whole);
		assert_true(share_open_to(whole, true, UINT64_MAX) == whole);
		assert_true(share_open_to(whole, false, least) == whole - whole / 16);
		assert_true(share_open_to(whole, false, least + 1) == whole - whole / 16 - whole / 4);
	}
	assert_int_equal(share_open_to(6000, false, 375), 5625);
	assert_int_equal(share_open_to(6000, false, 376), 4125);
	assert_int_equal(share_of(6000, 3), 2000);
}

static void the_rest_is_for_users_with_little_and_then_for_administrators(void **state)
{
	struct charge alice, bob, carol, root, more = {0};

	(void)state;
	alice = bob = carol = root = (struct charge){0};
	quota.limits[QUOTA_LEASES] = UINT64_MAX;
	quota.wholes[QUOTA_LEASES] = 160; /* 110 for all, 40 for those with at most 10, 10 for root */
	assert_int_equal(quota_charge_shared(&quota, ALICE, false, QUOTA_LEASES, 111, &alice),
			 QUOTA_RESERVED);
	assert_int_equal(count_accounts(), 0);
	assert_int_equal(quota_charge_shared(&quota, ALICE, false, QUOTA_LEASES, 110, &alice), 0);
	assert_int_equal(quota_charge_shared(&quota, BOB, false, QUOTA_LEASES, 11, &bob),
			 QUOTA_RESERVED);
	assert_int_equal(quota_charge_shared(&quota, BOB, false, QUOTA_LEASES, 10, &bob), 0);
	assert_int_equal(quota_charge_shared(&quota, BOB, false, QUOTA_LEASES, 1, &more),
			 QUOTA_RESERVED);
	/* An administrator with much leaves nothing to users with little, if it may. */
	assert_int_equal(quota_charge_shared(&quota, CAROL, true, QUOTA_LEASES, 40, &carol), 0);
	assert_int_equal(quota_charge_shared(&quota, 0, false, QUOTA_LEASES, 1, &root),
			 QUOTA_RESERVED);
	assert_int_equal(quota_charge_shared(&quota, 0, true, QUOTA_LEASES, 1, &root),
			 QUOTA_RESERVED);
	quota_refund(&bob);
	assert_int_equal(quota_charge_shared(&quota, 0, true, QUOTA_LEASES, 10, &root), 0);
	assert_int_equal(quota.used[QUOTA_LEASES], 160);
	assert_int_equal(quota_n_users(&quota, QUOTA_LEASES), 3);
	quota.limits[QUOTA_LEASES] = 5; /* checked first */
	assert_int_equal(quota_charge_shared(&quota, BOB, false, QUOTA_LEASES, 6, &bob),
			 QUOTA_EXCEEDED);
	quota_refund(&alice);
	quota_refund(&carol);
	quota_refund(&root);
	assert_int_equal(quota.used[QUOTA_LEASES], 0);
	assert_int_equal(quota_n_users(&quota, QUOTA_LEASES), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

static void a_charge_moves_to_another_user_and_kind_beyond_the_limit(void **state)
{
	struct charge c, none = {0};

	(void)state;
	quota.limits[QUOTA_HELD] = 5;
	assert_int_equal(charge(ALICE, QUOTA_BYTES, 10, &c), 0);
	assert_int_equal(quota_move(&quota, BOB, QUOTA_HELD, &c), 0);
	assert_int_equal(quota_used(&quota, ALICE, QUOTA_BYTES), 0);
	assert_int_equal(quota_used(&quota, BOB, QUOTA_HELD), 10);
	assert_int_equal(quota_left(&quota, BOB, QUOTA_HELD), 0);
	assert_int_equal(count_accounts(), 1);
	assert_int_equal(quota_move(&quota, ALICE, QUOTA_BYTES, &c), 0);
	assert_int_equal(quota_used(&quota, ALICE, QUOTA_BYTES), 10);
	assert_int_equal(quota_move(&quota, BOB, QUOTA_HELD, &none), 0);
	assert_int_equal(quota_used(&quota, BOB, QUOTA_HELD), 0);
	quota_refund(&c);
	assert_int_equal(count_accounts(), 0);
}

static void the_limit_of_held_memory_is_a_quarter_of_what_there_is(void **state)
{
	const struct quota_override own = {BOB, 1u << QUOTA_HELD, {[QUOTA_HELD] = 7}};

	(void)state;
	assert_true(quota_limit(&quota, ALICE, QUOTA_HELD) > UINT64_MAX / 5);
	quota_set_memory(&quota, 4000);
	set_overrides(&own, 1);
	quota.limits[QUOTA_HELD] = QUOTA_AUTO;
	assert_int_equal(quota_limit(&quota, ALICE, QUOTA_HELD), 1000);
	assert_int_equal(quota_limit(&quota, BOB, QUOTA_HELD), 7);
}

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
		TEST(an_override_is_for_one_user_and_one_kind),
		TEST(new_limits_hold_at_once_and_take_nothing_away),
		TEST(what_must_not_be_lost_is_charged_beyond_the_limit),
		TEST(a_charge_beyond_the_limit_is_refunded_exactly),
		TEST(a_charge_moves_to_another_user_and_kind_beyond_the_limit),
		TEST(the_limit_of_held_memory_is_a_quarter_of_what_there_is),
		TEST(the_limit_is_half_of_what_there_is),
		TEST(few_open_files_are_shared_by_what_is_kept_and_by_connections),
		TEST(an_override_may_be_a_share_too),
		TEST(shares_add_up_to_no_more_than_the_whole),
		TEST(the_rest_is_for_users_with_little_and_then_for_administrators),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

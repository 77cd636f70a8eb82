/*
 * Queue pairs are found by process and number if only one of its devices can be meant, for as long as they were
 * there, until there is no room for them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "bpf/rdma/qp.h"

static struct qps *set_up(void)
{
	struct qps *s = malloc(sizeof(*s));

	assert_non_null(s);
	qps_init(s);
	return s;
}

static void tear_down(struct qps *s)
{
	qps_deinit(s);
	assert_int_equal(s->n, 0);
	assert_true(list_empty(&s->users));
	free(s);
}

static struct qp qp_of(const char *device, uint64_t number, uid_t uid, uint64_t ns)
{
	struct qp qp = {.name = {.pid = 4711, .began_ticks = 5, .number = number},
			.uid = uid,
			.cause = {.number = ns, .ns = ns}};

	memcpy(qp.name.device, device, strlen(device));
	return qp;
}

static void make(struct qps *s, const char *device, uint64_t number, uint64_t ns)
{
	const struct qp qp = qp_of(device, number, 0, ns);

	qps_make(s, &qp);
}

static void join(struct qps *s, const char *device, uint64_t number, uint64_t ns, uint32_t peer)
{
	struct qp qp = qp_of(device, number, 0, ns);

	qp.peer = (struct qp_peer){.qp = peer, .has_qp = true};
	qps_connect(s, &qp);
}

static void destroy(struct qps *s, const char *device, uint64_t number, uint64_t ns)
{
	const struct qp qp = qp_of(device, number, 0, ns);

	qps_destroy(s, &qp.name, ns, ns);
}

/* Returns the event that it follows from, or 0. */
static uint64_t found(const struct qps *s, uint64_t number, uint64_t since_ns, uint64_t until_ns)
{
	const struct qp wanted = qp_of("", number, 0, 0);
	const struct qp *qp = qps_find(s, &wanted.name, since_ns, until_ns);

	return qp ? qp->cause.number : 0;
}

static void test_it_is_found_while_it_is_there(void **state)
{
	struct qps *s = set_up();

	(void)state;
	assert_int_equal(found(s, 7, 100, 200), 0);
	make(s, "mlx5_0", 7, 10);
	assert_int_equal(found(s, 7, 9, 200), 0);
	assert_int_equal(found(s, 7, 10, 200), 10);
	assert_int_equal(found(s, 8, 10, 200), 0);
	destroy(s, "mlx5_0", 7, 150);
	assert_int_equal(found(s, 7, 10, 150), 10);
	assert_int_equal(found(s, 7, 10, 151), 0);
	destroy(s, "mlx5_0", 7, 300); /* there is none */
	assert_int_equal(found(s, 7, 10, 151), 0);
	tear_down(s);
}

static void test_what_connected_it_last_is_told_of_all_its_life(void **state)
{
	const struct qp wanted = qp_of("", 7, 0, 0);
	struct qps *s = set_up();

	(void)state;
	make(s, "mlx5_0", 7, 10);
	join(s, "mlx5_0", 7, 20, 1);
	assert_int_equal(found(s, 7, 10, 200), 20);
	join(s, "mlx5_0", 7, 30, 1);
	assert_int_equal(found(s, 7, 10, 200), 30);
	assert_int_equal(qps_find(s, &wanted.name, 10, 200)->peer.qp, 1);
	join(s, "mlx5_0", 8, 40, 3); /* it was made before anybody looked */
	assert_int_equal(found(s, 8, 39, 200), 0);
	assert_int_equal(found(s, 8, 40, 200), 40);
	assert_int_equal(s->n, 2);
	tear_down(s);
}

static void test_one_that_is_connected_with_another_peer_is_another(void **state)
{
	const struct qp wanted = qp_of("", 7, 0, 0);
	struct qps *s = set_up();

	(void)state;
	make(s, "mlx5_0", 7, 10);
	join(s, "mlx5_0", 7, 20, 1);
	join(s, "mlx5_0", 7, 30, 2);
	assert_int_equal(qps_find(s, &wanted.name, 20, 25)->peer.qp, 1);
	assert_int_equal(found(s, 7, 20, 40), 0);
	assert_int_equal(qps_find(s, &wanted.name, 31, 40)->peer.qp, 2);
	tear_down(s);
}

static void test_one_that_was_used_before_that_began_is_none(void **state)
{
	struct qps *s = set_up();

	(void)state;
	make(s, "mlx5_0", 7, 10);
	destroy(s, "mlx5_0", 7, 20);
	assert_int_equal(found(s, 7, 15, 15), 10);
	assert_int_equal(found(s, 7, 30, 5), 0);
	tear_down(s);
}

static void test_a_number_that_is_given_again_is_another(void **state)
{
	struct qps *s = set_up();

	(void)state;
	make(s, "mlx5_0", 7, 10);
	destroy(s, "mlx5_0", 7, 20);
	make(s, "mlx5_0", 7, 30);
	assert_int_equal(found(s, 7, 10, 40), 0);
	assert_int_equal(found(s, 7, 30, 40), 30);
	destroy(s, "mlx5_0", 7, 50);
	join(s, "mlx5_0", 7, 60, 1);
	assert_int_equal(found(s, 7, 30, 70), 0);
	assert_int_equal(found(s, 7, 60, 70), 60);
	make(s, "mlx5_0", 7, 80); /* that it was destroyed was missed */
	assert_int_equal(found(s, 7, 60, 90), 0);
	assert_int_equal(found(s, 7, 80, 90), 80);
	assert_int_equal(found(s, 7, 10, 15), 10);
	tear_down(s);
}

static void test_one_that_is_made_before_the_other_is_said_to_be_gone_stays(void **state)
{
	const struct qp wanted = qp_of("mlx5_0", 7, 0, 0);
	struct qps *s = set_up();

	(void)state;
	make(s, "mlx5_0", 7, 10);
	make(s, "mlx5_0", 7, 30);
	qps_destroy(s, &wanted.name, 20, 40);
	assert_int_equal(found(s, 7, 30, 50), 30);
	tear_down(s);
}

static void test_of_two_devices_none_is_meant_while_both_have_the_number(void **state)
{
	struct qps *s = set_up();

	(void)state;
	make(s, "mlx5_0", 7, 10);
	make(s, "mlx5_1", 7, 20);
	assert_int_equal(found(s, 7, 10, 30), 10);
	assert_int_equal(found(s, 7, 20, 30), 0);
	destroy(s, "mlx5_0", 7, 40);
	assert_int_equal(found(s, 7, 20, 40), 0);
	assert_int_equal(found(s, 7, 20, 41), 20);
	assert_int_equal(found(s, 7, 10, 41), 0);
	tear_down(s);
}

static void test_a_device_that_is_not_known_may_be_any(void **state)
{
	struct qps *s = set_up();

	(void)state;
	make(s, "", 7, 10);
	assert_int_equal(found(s, 7, 10, 20), 10);
	make(s, "mlx5_0", 7, 11);
	assert_int_equal(found(s, 7, 11, 20), 0);
	destroy(s, "", 7, 30);
	assert_int_equal(found(s, 7, 11, 31), 0);
	assert_int_equal(found(s, 7, 10, 20), 10);
	make(s, "", 8, 10);
	make(s, "mlx5_0", 8, 40);
	destroy(s, "mlx5_1", 8, 50);
	assert_int_equal(found(s, 8, 40, 51), 40);
	tear_down(s);
}

static void test_one_of_another_device_is_not_meant_by_what_is_told_late(void **state)
{
	struct qps *s = set_up();

	(void)state;
	make(s, "mlx5_0", 7, 10);
	make(s, "mlx5_1", 7, 10);
	destroy(s, "mlx5_0", 7, 20);
	make(s, "mlx5_0", 7, 30);
	assert_int_equal(found(s, 7, 10, 15), 0);
	assert_int_equal(found(s, 7, 21, 29), 10);
	tear_down(s);
}

static void test_another_process_has_others(void **state)
{
	struct qp wanted = qp_of("", 7, 0, 0);
	struct qps *s = set_up();

	(void)state;
	make(s, "mlx5_0", 7, 10);
	wanted.name.pid++;
	assert_null(qps_find(s, &wanted.name, 10, 20));
	qps_destroy(s, &wanted.name, 15, 15);
	wanted = qp_of("", 7, 0, 0);
	wanted.name.began_ticks++; /* another process with the same pid */
	assert_null(qps_find(s, &wanted.name, 10, 20));
	assert_int_equal(found(s, 7, 10, 20), 10);
	tear_down(s);
}

static void test_no_user_takes_the_room_of_others(void **state)
{
	struct qps *s = set_up();

	(void)state;
	make(s, "mlx5_0", QPS_MAX * 2, 1);
	for (uint64_t i = 1; i <= QPS_MAX; i++) {
		const struct qp qp = qp_of("mlx5_0", i, 1000, i);

		qps_make(s, &qp);
	}
	assert_int_equal(s->n, QPS_OF_USER_MAX + 1);
	assert_int_equal(found(s, QPS_MAX * 2, 1, 2), 1);
	assert_int_equal(found(s, QPS_MAX, QPS_MAX, QPS_MAX), QPS_MAX);
	assert_int_equal(found(s, QPS_MAX - QPS_OF_USER_MAX, QPS_MAX, QPS_MAX), 0);
	tear_down(s);
}

static void test_those_that_are_over_go_first_and_of_users_who_has_most_loses(void **state)
{
	struct qps *s = set_up();

	(void)state;
	for (uint64_t i = 1; i <= QPS_OF_USER_MAX; i++)
		make(s, "mlx5_0", i, i);
	destroy(s, "mlx5_0", 5, QPS_MAX);
	make(s, "mlx5_0", QPS_MAX * 2, QPS_MAX);
	assert_int_equal(found(s, 5, 5, 6), 0);
	assert_int_equal(found(s, 1, 1, 2), 1);
	for (uint64_t i = 1; i <= QPS_MAX - QPS_OF_USER_MAX + 1; i++) {
		const struct qp qp = qp_of("mlx5_0", QPS_MAX * 3 + i, (uid_t)(1 + i), i);

		qps_make(s, &qp);
	}
	assert_int_equal(s->n, QPS_MAX);
	assert_int_equal(found(s, 1, 1, 2), 0);
	assert_int_equal(found(s, 2, 2, 3), 2);
	assert_int_equal(found(s, QPS_MAX * 3 + 1, 1, 2), 1);
	tear_down(s);
}

/* Each is looked for among those of its number. */
static void test_who_makes_up_devices_has_no_more_room_for_one_number(void **state)
{
	struct qps *s = set_up();
	char device[16];

	(void)state;
	for (unsigned i = 1; i <= 10 * QPS_OF_BUCKET_MAX; i++) {
		(void)snprintf(device, sizeof(device), "made%u", i);
		make(s, device, 7, i);
	}
	assert_int_equal(s->n, QPS_OF_BUCKET_MAX);
	tear_down(s);
}

/* Returns the next number from `n` on that is in the first bucket with a hash without a key. */
static uint64_t chosen(pid_t pid, uint64_t n)
{
	while (((n ^ (uint64_t)pid << 32) * 0x9e3779b97f4a7c15u >> 32) % QP_BUCKETS != 0)
		n++;
	return n;
}

static unsigned longest(const struct qps *s)
{
	unsigned found = 0, n;
	struct qp *qp;

	for (unsigned i = 0; i < QP_BUCKETS; i++) {
		n = 0;
		list_for_each(qp, &s->buckets[i], in_bucket)
			n++;
		if (n > found)
			found = n;
	}
	return found;
}

/* Four are in a bucket of 4096 at random, and more than 32 are in none but once in 10^15. */
static void test_many_users_make_no_long_chain(void **state)
{
	struct qps *s = set_up();

	(void)state;
	for (unsigned user = 0; user < QPS_MAX / QPS_OF_BUCKET_MAX; user++) {
		struct qp qp = qp_of("mlx5_0", 0, 1000 + user, 1);

		qp.name.pid = 5000 + (pid_t)user;
		for (unsigned i = 0; i < QPS_OF_BUCKET_MAX; i++) {
			qp.name.number = chosen(qp.name.pid, qp.name.number + 1);
			qps_make(s, &qp);
		}
	}
	assert_int_equal(s->n, QPS_MAX);
	assert_in_range(longest(s), 1, 32);
	tear_down(s);
}

static void test_one_that_is_made_again_and_again_leaves_others_of_its_number(void **state)
{
	struct qps *s = set_up();

	(void)state;
	make(s, "mlx5_1", 7, 1);
	for (unsigned i = 2; i <= 10 * QPS_OF_BUCKET_MAX; i++)
		make(s, "mlx5_0", 7, i);
	assert_int_equal(s->n, QPS_OF_BUCKET_MAX);
	destroy(s, "mlx5_0", 7, 1000);
	assert_int_equal(found(s, 7, 1001, 1002), 1);
	tear_down(s);
}

static void test_of_the_peer_is_told_what_is_known(void **state)
{
	struct qp_peer peer = {.qp = 0x77, .lid = 9, .port = 1, .gid = {0xfe, 0x80, [15] = 1}};
	json_t *act = json_object();

	(void)state;
	qp_peer_set(act, &peer);
	assert_int_equal(json_object_size(act), 0);
	peer.has_qp = peer.has_path = true;
	qp_peer_set(act, &peer);
	assert_int_equal(json_object_size(act), 3);
	assert_null(json_object_get(act, "peer_gid"));
	peer.has_gid = true;
	qp_peer_set(act, &peer);
	assert_int_equal(json_integer_value(json_object_get(act, "peer_qp")), 0x77);
	assert_int_equal(json_integer_value(json_object_get(act, "peer_lid")), 9);
	assert_int_equal(json_integer_value(json_object_get(act, "port")), 1);
	assert_string_equal(json_string_value(json_object_get(act, "peer_gid")), "fe80::1");
	json_decref(act);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_it_is_found_while_it_is_there),
		cmocka_unit_test(test_what_connected_it_last_is_told_of_all_its_life),
		cmocka_unit_test(test_one_that_is_connected_with_another_peer_is_another),
		cmocka_unit_test(test_one_that_was_used_before_that_began_is_none),
		cmocka_unit_test(test_a_number_that_is_given_again_is_another),
		cmocka_unit_test(test_one_that_is_made_before_the_other_is_said_to_be_gone_stays),
		cmocka_unit_test(test_of_two_devices_none_is_meant_while_both_have_the_number),
		cmocka_unit_test(test_one_of_another_device_is_not_meant_by_what_is_told_late),
		cmocka_unit_test(test_a_device_that_is_not_known_may_be_any),
		cmocka_unit_test(test_another_process_has_others),
		cmocka_unit_test(test_no_user_takes_the_room_of_others),
		cmocka_unit_test(test_those_that_are_over_go_first_and_of_users_who_has_most_loses),
		cmocka_unit_test(test_who_makes_up_devices_has_no_more_room_for_one_number),
		cmocka_unit_test(test_many_users_make_no_long_chain),
		cmocka_unit_test(test_one_that_is_made_again_and_again_leaves_others_of_its_number),
		cmocka_unit_test(test_of_the_peer_is_told_what_is_known),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

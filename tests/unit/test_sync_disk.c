/*
 * A member that cannot write its record: it reports that before bytes move, or keeps the received
 * ones.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <string.h>

#include "sim.h"

#define S SIM_SECOND
#define SIZE ((uint64_t)64 << 20)

static struct sim *world(enum policy policy)
{
	struct sim *s = sim_new(
		&(struct sim_options){.n_nodes = 3, .policy = policy, .n_bytes = SIZE, .seed = 11});

	sim_run(s, S); /* they connect and exchange heads */
	return s;
}

static void push_and_wait(struct sim *s, const char *outcome)
{
	char sync[SYNC_ID_SIZE];

	sim_forget_end(s, 0);
	assert_int_equal(sim_push(s, 0, sync), 0);
	assert_true(sim_run_until(s, sim_ended, 120 * S));
	assert_string_equal(s->nodes[0].outcome, outcome);
}

static void test_a_full_disk_is_told_before_bytes_move(void **state)
{
	struct sim *s = world(POLICY_ALL);

	(void)state;
	s->nodes[1].disk_is_full = true;
	push_and_wait(s, "failed");
	assert_non_null(strstr(s->nodes[0].why, "n0001 refused: its commit log cannot be written"));
	for (unsigned i = 1; i < 3; i++)
		assert_int_equal(s->nodes[i].n_received, 0);
	s->nodes[1].disk_is_full = false;
	push_and_wait(s, "committed");
	sim_free(s);
}

static void test_so_is_that_of_the_publisher(void **state)
{
	struct sim *s = world(POLICY_ALL);
	char sync[SYNC_ID_SIZE];

	(void)state;
	s->nodes[0].disk_is_full = true;
	assert_int_equal(sim_push(s, 0, sync), -ENOSPC);
	s->nodes[0].disk_is_full = false;
	push_and_wait(s, "committed");
	sim_free(s);
}

static bool fill_at_commit(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	(void)from;
	if (to == 1 && strcmp(json_string_value(json_object_get(message, "type")), "commit") == 0)
		s->nodes[1].disk_is_full = true;
	return true;
}

static bool n1_serves(struct sim *s)
{
	return sim_serves(s, 1) == s->n_contents;
}

static struct sim *full_at_commit(void)
{
	struct sim *s = world(POLICY_ALL);

	s->on_message = fill_at_commit;
	push_and_wait(s, "committed");
	s->on_message = NULL;
	assert_int_equal(sim_serves(s, 2), 1);
	assert_int_equal(sim_serves(s, 1), 0);
	return s;
}

static void test_what_was_verified_is_not_fetched_again(void **state)
{
	struct sim *s = full_at_commit();

	(void)state;
	sim_run(s, 60 * S);
	assert_int_equal(sim_serves(s, 1), 0);
	s->nodes[1].disk_is_full = false;
	assert_true(sim_run_until(s, n1_serves, 5 * S));
	assert_int_equal(s->nodes[1].n_received, SIZE);
	assert_true(sim_run_until(s, sim_is_converged, 60 * S));
	sim_free(s);
}

/* Its publisher may be gone by then. */
static void test_nobody_is_needed_for_that(void **state)
{
	struct sim *s = full_at_commit();

	(void)state;
	sim_kill(s, 0);
	sim_kill(s, 2);
	sim_run(s, 30 * S);
	s->nodes[1].disk_is_full = false;
	assert_true(sim_run_until(s, n1_serves, 5 * S));
	sim_free(s);
}

static void test_the_next_push_takes_its_place(void **state)
{
	struct sim *s = full_at_commit();

	(void)state;
	s->nodes[1].disk_is_full = false;
	push_and_wait(s, "committed");
	assert_int_equal(sim_serves(s, 1), 2);
	sim_free(s);
}

/* That has a limit, too. */
static void test_memory_is_not_kept_for_ever(void **state)
{
	struct sim *s = full_at_commit();

	(void)state;
	sim_run(s, 700 * S);
	assert_true(list_empty(&s->nodes[1].jobs));
	assert_int_equal(s->nodes[1].n_received,
			 SIZE); /* it is not fetched either while it could not be committed */
	s->nodes[1].disk_is_full = false;
	assert_true(sim_run_until(s, n1_serves, 60 * S));
	sim_free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_full_disk_is_told_before_bytes_move),
		cmocka_unit_test(test_so_is_that_of_the_publisher),
		cmocka_unit_test(test_what_was_verified_is_not_fetched_again),
		cmocka_unit_test(test_nobody_is_needed_for_that),
		cmocka_unit_test(test_the_next_push_takes_its_place),
		cmocka_unit_test(test_memory_is_not_kept_for_ever),
	};

	return cmocka_run_group_tests_name("sync_disk", tests, NULL, NULL);
}

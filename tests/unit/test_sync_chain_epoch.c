/* Epochs: the order of a chain, and the conclusions from a broken one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "ipc/base/num.h"
#include "server/sync/base/json_packet.h"
#include "sim.h"
#include "sim_jobs.h"

#define S SIM_SECOND

/*
 * A version that takes longer than a stall: the nodes before a broken link do not receive all of it
 * in one epoch.
 */
static struct sim *slow_world(unsigned n)
{
	struct sim *s = sim_new(&(struct sim_options){
		.n_nodes = n, .policy = POLICY_ALL, .seed = n, .n_bytes = 4 * GIB});

	for (unsigned i = 0; i < n; i++)
		s->nodes[i].rate = 64 * MIB;
	sim_run(s, S);
	return s;
}

/* Epochs in our last history row. */
static uint64_t n_epochs(struct sim *s)
{
	cleanup(json_freep) json_t *rows = agent_status(s->nodes[0].agent, NULL);
	const json_t *row = json_array_get(rows, json_array_size(rows) - 1);

	return (uint64_t)json_integer_value(json_object_get(row, "epoch"));
}

static void assert_push_takes(struct sim *s, uint64_t n_epochs_max)
{
	char sync[SYNC_ID_SIZE];

	assert_int_equal(sim_push(s, 0, sync), 0);
	assert_true(sim_run_until(s, sim_ended, 2000 * S));
	if (strcmp(s->nodes[0].outcome, "committed") != 0)
		print_message("%s\n", s->nodes[0].why);
	assert_string_equal(s->nodes[0].outcome, "committed");
	assert_in_range(n_epochs(s), 1, n_epochs_max);
}

static void test_a_cut_between_two_members_is_gone_around(void **state)
{
	(void)state;
	for (unsigned n = 4; n <= 7; n++) {
		for (unsigned i = 1; i + 1 < n; i++) {
			struct sim *s = slow_world(n);

			sim_cut(s, i, i + 1, true);
			assert_push_takes(s, 3);
			sim_free(s);
		}
	}
}

static void test_two_that_no_order_can_part_take_turns(void **state)
{
	struct sim *s = slow_world(3);

	(void)state;
	sim_cut(s, 1, 2, true);
	assert_push_takes(s, 4);
	sim_free(s);
}

/* It receives from all nodes and none receives from it: the last node of a chain sends to none. */
static void test_who_can_send_to_no_member_comes_last(void **state)
{
	struct sim *s = slow_world(5);

	(void)state;
	for (unsigned i = 2; i < 5; i++)
		sim_cut(s, 1, i, true);
	assert_push_takes(s, 6);
	sim_free(s);
}

/* Many nodes could precede it, one after the other, and only this node can. */
static void test_whom_no_member_can_send_to_does_not_keep_many_waiting(void **state)
{
	struct sim *s = slow_world(20);

	(void)state;
	for (unsigned i = 1; i < 19; i++)
		sim_cut(s, i, 19, true);
	assert_push_takes(s, 5);
	sim_free(s);
}

/* It is killed before its "start", after an earlier one has started. */
static bool kill_what_opened(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	(void)to;
	if (strcmp(sim_text(message, "type"), "opened") == 0) {
		assert_true(sim_kill_job(s, from, JOB_TCP));
		s->on_message = NULL;
	}
	return true;
}

static void test_an_engine_that_ends_as_it_is_to_start_costs_an_epoch_alone(void **state)
{
	struct sim *s = slow_world(2);

	(void)state;
	s->on_message = kill_what_opened;
	assert_push_takes(s, 2);
	assert_null(s->on_message);
	sim_free(s);
}

static bool count_strangers(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	unsigned *n = s->userdata;

	(void)from, (void)to;
	if (strcmp(sim_text(message, "type"), "broken") == 0)
		*n += strstr(sim_text(message, "why"), "in the group 'main'") != NULL;
	return true;
}

/* Their files differ: each has all nodes except the other. */
static void test_who_is_of_the_group_elsewhere_alone_is_not_dialled(void **state)
{
	struct sim *s = slow_world(3);
	const char *const members[2][2] = {{s->names[0], s->names[1]}, {s->names[0], s->names[2]}};
	struct group groups[2] = {s->group, s->group};
	unsigned n_strangers = 0;

	(void)state;
	for (unsigned i = 0; i < 2; i++) {
		groups[i].members = members[i];
		groups[i].n_members = 2;
		s->nodes[i + 1].config.groups = &groups[i];
	}
	s->on_message = count_strangers;
	s->userdata = &n_strangers;
	assert_push_takes(s, 4);
	assert_true(n_strangers > 0);
	sim_free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_cut_between_two_members_is_gone_around),
		cmocka_unit_test(test_two_that_no_order_can_part_take_turns),
		cmocka_unit_test(test_who_can_send_to_no_member_comes_last),
		cmocka_unit_test(test_whom_no_member_can_send_to_does_not_keep_many_waiting),
		cmocka_unit_test(test_an_engine_that_ends_as_it_is_to_start_costs_an_epoch_alone),
		cmocka_unit_test(test_who_is_of_the_group_elsewhere_alone_is_not_dialled),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

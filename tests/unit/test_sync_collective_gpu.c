/* Averages of versions, some of them on GPUs: these are copied first, which may hang or fail. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "collective_scene.h"
#include "ipc/base/num.h"
#include "server/sync/base/json_packet.h"

#define S SIM_SECOND

/* In a world of three, these nodes have the group on a GPU; a bit for each. */
static struct sim *world(enum policy policy, unsigned on_gpus, struct group *ret)
{
	struct sim *s = scene_world(3, policy);

	*ret = s->group;
	ret->device = "cuda:0";
	for (unsigned i = 0; i < 3; i++)
		if (on_gpus & 1u << i)
			s->nodes[i].config.groups = ret;
	return s;
}

static void test_hosts_and_gpus_average(void **state)
{
	(void)state;
	for (unsigned on_gpus = 1; on_gpus < 8; on_gpus++) {
		struct group group;
		struct sim *s = world(POLICY_ALL, on_gpus, &group);
		uint64_t had[16];

		scene_note(s, had);
		average_and_wait(s, "committed");
		assert_mean_of(s, had, 7);
		assert_well(s);
		sim_free(s);
	}
}

/* A hanging copy has a deadline, and the others wait for it. */
static void test_a_copy_that_hangs_costs_its_node_the_average(void **state)
{
	(void)state;
	for (enum policy p = POLICY_ALL; p <= POLICY_EACH; p++) {
		struct group group;
		struct sim *s = world(p, 2, &group);
		uint64_t had[16];

		s->nodes[1].copies_hang = true;
		scene_note(s, had);
		average_and_wait(s, p == POLICY_ALL ? "failed" : "committed");
		if (p == POLICY_ALL) {
			assert_non_null(strstr(s->nodes[0].why,
					       "n0001 refused: the local weightd of n0001 did not "
					       "answer in time"));
			assert_untouched(s, had);
		} else {
			assert_mean_of(s, had, 5);
		}
		s->nodes[1].copies_hang = false;
		assert_well(s);
		sim_free(s);
	}
}

static void test_a_coordinator_whose_copy_hangs_ends_it_in_time(void **state)
{
	struct group group;
	struct sim *s = world(POLICY_QUORUM, 1, &group);
	char sync[SYNC_ID_SIZE];
	uint64_t had[16];

	(void)state;
	s->nodes[0].copies_hang = true;
	scene_note(s, had);
	scene_begin(s, sync);
	assert_ends(s, "failed", 15 * S);
	assert_non_null(strstr(s->nodes[0].why, "the local weightd of n0000 did not answer in time"));
	assert_untouched(s, had);
	s->nodes[0].copies_hang = false;
	assert_well(s);
	sim_free(s);
}

static void test_a_source_that_dies_while_it_copies_ends_what_it_was_for(void **state)
{
	struct group group;
	struct sim *s = world(POLICY_ALL, 2, &group);
	char sync[SYNC_ID_SIZE];
	uint64_t had[16];

	(void)state;
	s->nodes[1].copies_hang = true;
	scene_note(s, had);
	scene_begin(s, sync);
	sim_run(s, 5 * S);
	assert_true(sim_kill_job(s, 1, JOB_SOURCE));
	assert_ends(s, "failed", 1 * S);
	assert_non_null(strstr(s->nodes[0].why, "n0001 refused: the source process of n0001 ended"));
	assert_untouched(s, had);
	s->nodes[1].copies_hang = false;
	assert_well(s);
	sim_free(s);
}

/* The room for this version takes longer than any step without bytes. */
static void test_what_a_large_version_takes_to_be_copied_is_waited_for(void **state)
{
	struct group group;
	struct sim *s = world(POLICY_ALL, 7, &group);
	char sync[SYNC_ID_SIZE];
	uint64_t had[16];

	(void)state;
	for (unsigned i = 0; i < 3; i++)
		sim_add_version(&s->nodes[i], SIM_BUFFER, ++s->n_contents, 64 * GIB);
	for (unsigned i = 0; i < 3; i++)
		s->nodes[i].copies_hang = true;
	scene_note(s, had);
	scene_begin(s, sync);
	sim_run(s, 250 * S); /* less than 256 s, and 10 to answer */
	assert_false(sim_ended(s));
	sim_run(s, 20 * S);
	assert_true(sim_ended(s));
	assert_untouched(s, had);
	sim_free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_hosts_and_gpus_average),
		cmocka_unit_test(test_a_copy_that_hangs_costs_its_node_the_average),
		cmocka_unit_test(test_a_coordinator_whose_copy_hangs_ends_it_in_time),
		cmocka_unit_test(test_a_source_that_dies_while_it_copies_ends_what_it_was_for),
		cmocka_unit_test(test_what_a_large_version_takes_to_be_copied_is_waited_for),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

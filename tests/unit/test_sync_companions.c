/* Headers and files of versions, which travel with the layout. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "sim.h"

#define S SIM_SECOND

/* Node 0 has pushed a version with companions, or without. */
static struct sim *pushed(bool has_companions)
{
	struct sim *s = sim_new(
		&(struct sim_options){.n_nodes = 3, .policy = POLICY_ALL, .seed = 11});
	char sync[SYNC_ID_SIZE];

	s->nodes[0].has_companions = has_companions;
	sim_run(s, S);
	assert_int_equal(sim_push(s, 0, sync), 0);
	assert_true(sim_run_until(s, sim_is_converged, 60 * S));
	return s;
}

static void test_each_member_gets_them_once(void **state)
{
	struct sim *s = pushed(true);

	(void)state;
	for (unsigned i = 1; i < 3; i++)
		assert_int_equal(s->nodes[i].n_companions, 1);
	sim_free(s);
}

static void test_a_publisher_without_them_says_nothing_of_them(void **state)
{
	struct sim *s = pushed(false);

	(void)state;
	for (unsigned i = 1; i < 3; i++)
		assert_int_equal(s->nodes[i].n_told_companions, 0);
	sim_free(s);
}

static bool n2_serves(struct sim *s)
{
	return sim_serves(s, 2);
}

/* Node 2 fetches the version, and may ask only one of the others. */
static void lose_and_fetch_from(struct sim *s, unsigned node)
{
	sim_cut(s, 2, 1 - node, true);
	sim_lose_data(s, 2);
	assert_true(sim_run_until(s, n2_serves, 60 * S));
}

static void test_a_repair_brings_them_from_any_node(void **state)
{
	(void)state;
	for (unsigned node = 0; node < 2; node++) {
		struct sim *s = pushed(true);

		lose_and_fetch_from(s, node);
		assert_int_equal(s->nodes[2].n_companions, 2);
		sim_free(s);
	}
}

/* It got the version from an agent that does not pass them on. */
static void test_a_node_that_lacks_them_repairs_the_weights(void **state)
{
	struct sim *s = pushed(true);

	(void)state;
	for (unsigned i = 0; i < s->nodes[1].n_versions; i++)
		s->nodes[1].versions[i].has_companions = false;
	lose_and_fetch_from(s, 1);
	assert_int_equal(s->nodes[2].n_companions, 1);
	assert_int_equal(s->nodes[2].n_told_companions, 2);
	sim_free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_each_member_gets_them_once),
		cmocka_unit_test(test_a_publisher_without_them_says_nothing_of_them),
		cmocka_unit_test(test_a_repair_brings_them_from_any_node),
		cmocka_unit_test(test_a_node_that_lacks_them_repairs_the_weights),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

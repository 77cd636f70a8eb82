/*
 * Heads: the order of versions, and what peers claim to have.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/num.h"
#include "server/sync/base/talk.h"
#include "server/sync/group.h"
#include "sim.h"

#define S SIM_SECOND

static bool has_outcome(const struct sim_node *n, const char *outcome)
{
	if (strcmp(n->outcome, outcome) != 0)
		print_message("%s: '%s' %s\n", n->name, n->outcome, n->why);
	return strcmp(n->outcome, outcome) == 0;
}

static void assert_converges(struct sim *s, uint64_t content)
{
	assert_true(sim_run_until(s, sim_is_converged, 300 * S));
	assert_int_equal(sim_serves(s, 0), content);
}

/* --- The order of versions ---------------------------------------------------------------------- */

static void test_no_two_publishers_have_the_same_term(void **state)
{
	static const char *const NAMES[] = {"b", "c", "a"};
	const struct group g = {.publishers = NAMES, .n_publishers = ARRAY_LEN(NAMES)};

	(void)state;
	for (uint64_t least = 0; least < 12; least++) {
		uint64_t terms[ARRAY_LEN(NAMES)];

		for (unsigned i = 0; i < ARRAY_LEN(NAMES); i++) {
			terms[i] = group_term(&g, NAMES[i], least);
			assert_in_range(terms[i], least, least + 2);
			assert_int_equal(group_term(&g, NAMES[i], terms[i]), terms[i]);
			for (unsigned j = 0; j < i; j++)
				assert_int_not_equal(terms[i], terms[j]);
		}
	}
	assert_int_equal(group_term(&g, "a", 1), 1);
	assert_int_equal(group_term(&g, "c", 1), 3);
}

/* Each sees but one member, as a cut between two racks does. */
static void test_publishers_that_do_not_see_each_other_mint_other_pairs(void **state)
{
	struct sim *s = sim_new(&(struct sim_options){
		.n_nodes = 4, .n_publishers = 2, .policy = POLICY_EACH, .seed = 5});
	char sync[SYNC_ID_SIZE];

	(void)state;
	sim_run(s, S);
	for (unsigned i = 0; i < 4; i++)
		for (unsigned j = 0; j < i; j++)
			sim_cut(s, i, j, i % 2 != j % 2);
	sim_run(s, 30 * S);
	assert_int_equal(sim_push(s, 0, sync), 0);
	assert_int_equal(sim_push(s, 1, sync), 0);
	sim_run(s, 30 * S);
	assert_true(has_outcome(&s->nodes[0], "committed"));
	assert_true(has_outcome(&s->nodes[1], "committed"));
	assert_int_equal(sim_serves(s, 2), 1);
	assert_int_equal(sim_serves(s, 3), 2);
	assert_int_not_equal(s->pairs[1][0], s->pairs[2][0]);
	for (unsigned i = 0; i < 4; i++)
		for (unsigned j = 0; j < i; j++)
			sim_cut(s, i, j, false);
	assert_converges(s, s->pairs[1][0] > s->pairs[2][0] ? 1 : 2);
	sim_free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_no_two_publishers_have_the_same_term),
		cmocka_unit_test(test_publishers_that_do_not_see_each_other_mint_other_pairs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

#include "push_scene.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#define S SIM_SECOND

struct sim *push_world(unsigned n, enum policy policy)
{
	struct sim *s = sim_new(
		&(struct sim_options){.n_nodes = n, .policy = policy, .seed = n + 77});

	sim_run(s, S); /* they connect and exchange heads */
	return s;
}

void push_and_wait(struct sim *s, const char *outcome)
{
	char sync[SYNC_ID_SIZE];

	assert_int_equal(sim_push(s, 0, sync), 0);
	assert_true(sim_run_until(s, sim_ended, 300 * S));
	if (strcmp(s->nodes[0].outcome, outcome) != 0)
		print_message("%s\n", s->nodes[0].why);
	assert_string_equal(s->nodes[0].outcome, outcome);
}

void assert_all_serve(struct sim *s, uint64_t content)
{
	assert_true(sim_run_until(s, sim_is_converged, 120 * S));
	assert_int_equal(sim_serves(s, 0), content);
}

/*
 * The forecast of weightctl sync plan for a chain, compared with agents in virtual time: with more
 * nodes than a test bed has, with stragglers, and with a node that falls silent.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "libclient/weightctl/verbs/push_model.h"
#include "sim.h"

#define S SIM_SECOND
#define MIB ((uint64_t)1 << 20)
#define RATE (64 * MIB)
#define SIZE (1024 * MIB)
#define STALL_S 5 /* the same as in the simulated nodes */

static struct sim *world(unsigned n)
{
	struct sim *s = sim_new(&(struct sim_options){
		.n_nodes = n, .policy = POLICY_QUORUM, .n_bytes = SIZE, .seed = n + 5});

	for (unsigned i = 0; i < n; i++)
		s->nodes[i].rate = RATE;
	sim_run(s, S); /* they connect and exchange heads */
	return s;
}

static uint64_t begin(struct sim *s)
{
	char sync[SYNC_ID_SIZE];

	assert_int_equal(sim_push(s, 0, sync), 0);
	return s->now_ns;
}

/* Returns seconds. */
static double await_end(struct sim *s, uint64_t began)
{
	assert_true(sim_run_until(s, sim_ended, 300 * S));
	assert_string_equal(s->nodes[0].outcome, "committed");
	return (double)(s->now_ns - began) / (double)S;
}

static double predict(struct push_model_cluster c)
{
	struct push_model f;

	c.n_bytes = SIZE;
	c.rate = RATE;
	c.digest_rate = 1e12; /* simulated digests take no time */
	c.chunk = 64 << 10; /* simulated engines forward bytes at once */
	c.latency_s = 1e-3;
	c.stall_s = STALL_S;
	c.slowness = c.n_stragglers ? c.slowness : 1;
	assert_string_equal(push_model_schedules[0].name, "chain");
	push_model_make(&push_model_schedules[0], &c, &f);
	return f.total_s;
}

static void assert_near(double took, double predicted, double tolerance)
{
	if (fabs(took - predicted) <= tolerance * predicted)
		return;
	print_error("it took %g s, %g were predicted\n", took, predicted);
	fail();
}

static void test_a_chain_of_any_length(void **state)
{
	static const unsigned N[] = {2, 4, 16, 100};

	(void)state;
	for (size_t i = 0; i < sizeof(N) / sizeof(N[0]); i++) {
		struct sim *s = world(N[i]);

		assert_near(await_end(s, begin(s)),
			    predict((struct push_model_cluster){.n_nodes = N[i]}), 0.1);
		sim_free(s);
	}
}

static void test_stragglers_once_their_rate_is_known(void **state)
{
	struct sim *s = world(16);

	(void)state;
	s->nodes[3].rate = RATE / 4;
	(void)await_end(s, begin(s));
	(void)await_end(s, begin(s));
	assert_near(await_end(s, begin(s)),
		    predict((struct push_model_cluster){
			    .n_nodes = 16, .n_stragglers = 1, .slowness = 4}),
		    0.1);
	sim_free(s);
}

static bool half_of_it_is_there(struct sim *s)
{
	return s->nodes[8].n_received > SIZE / 2;
}

static void test_a_node_that_goes_silent(void **state)
{
	struct sim *s = world(16);
	uint64_t began = begin(s);

	(void)state;
	assert_true(sim_run_until(s, half_of_it_is_there, 60 * S));
	for (unsigned i = 0; i < 16; i++)
		if (i != 8)
			sim_cut(s, 8, i, true);
	assert_near(await_end(s, began),
		    predict((struct push_model_cluster){.n_nodes = 16, .n_failures = 1}), 0.1);
	sim_free(s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_chain_of_any_length),
		cmocka_unit_test(test_stragglers_once_their_rate_is_known),
		cmocka_unit_test(test_a_node_that_goes_silent),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

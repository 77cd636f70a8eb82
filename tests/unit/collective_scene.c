#include "collective_scene.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "server/sync/base/json_packet.h"
#include "sim_jobs.h"

#define S SIM_SECOND

struct sim *scene_world(unsigned n, enum policy policy)
{
	struct sim *s = sim_new(&(struct sim_options){
		.n_nodes = n, .n_publishers = 2, .policy = policy, .seed = n + 277});

	for (unsigned i = 0; i < n; i++)
		assert_true(sim_train(s, i, SIM_BUFFER));
	sim_run(s, S); /* they connect and exchange heads */
	return s;
}

void scene_begin(struct sim *s, char ret_sync[SYNC_ID_SIZE])
{
	assert_int_equal(sim_average(s, 0, SIM_BUFFER, ret_sync), 0);
}

/* --- Losses --------------------------------------------------------------------------------------- */

const char *const BLOWS[] = {"death",
			     "silence of the agent",
			     "jobs that hang",
			     "death of the engine",
			     "death of the source",
			     "death of the sink"};

static void strike(struct sim *s, const struct loss *l)
{
	static const enum job_kind KINDS[] = {
		[BLOW_ENGINE] = JOB_GLOO, [BLOW_SOURCE] = JOB_SOURCE, [BLOW_SINK] = JOB_SINK};
	struct sim_node *n = &s->nodes[l->victim];

	if (l->blow == BLOW_KILL)
		sim_kill(s, l->victim);
	else if (l->blow == BLOW_SILENCE)
		n->is_silent = true;
	else if (l->blow == BLOW_HANG)
		n->jobs_hang = true;
	else
		(void)sim_kill_job(s, l->victim, KINDS[l->blow]);
}

bool strike_at(struct sim *s, unsigned from, unsigned to, const json_t *message)
{
	struct loss *l = s->userdata;

	if (l->at_ns || strcmp(sim_text(message, "type"), l->type) != 0 ||
	    (l->victim && from != l->victim && to != l->victim))
		return true;
	l->at_ns = s->now_ns;
	strike(s, l);
	return true;
}

void recover(struct sim *s, unsigned victim)
{
	struct sim_node *n = &s->nodes[victim];

	n->is_silent = n->jobs_hang = false;
	if (!n->agent)
		sim_start(s, victim);
}

/* --- Assertions -------------------------------------------------------------------------------- */

void assert_ends(struct sim *s, const char *outcome, uint64_t within)
{
	uint64_t began = s->now_ns;

	assert_true(sim_run_until(s, sim_ended, within));
	if (strcmp(s->nodes[0].outcome, outcome) != 0)
		print_message("%s, after %.1f s\n", s->nodes[0].why,
			      (double)(s->now_ns - began) / 1e9);
	assert_string_equal(s->nodes[0].outcome, outcome);
}

void average_and_wait(struct sim *s, const char *outcome)
{
	char sync[SYNC_ID_SIZE];

	scene_begin(s, sync);
	assert_ends(s, outcome, 400 * S);
}

void assert_mean_of(struct sim *s, const uint64_t *had, unsigned nodes)
{
	const struct sim_made *average = sim_average_of(s, sim_serves(s, 0));
	unsigned n = 0;

	assert_non_null(average);
	for (unsigned i = 0; i < s->options.n_nodes; i++)
		if (nodes & 1u << i)
			assert_int_equal(average->terms[n++], had[i]);
	assert_int_equal(average->n_terms, n);
}

void scene_note(const struct sim *s, uint64_t ret_had[])
{
	for (unsigned i = 0; i < s->options.n_nodes; i++)
		ret_had[i] = sim_serves(s, i);
}

void assert_untouched(const struct sim *s, const uint64_t had[])
{
	for (unsigned i = 0; i < s->options.n_nodes; i++)
		assert_int_equal(sim_serves(s, i), had[i]);
}

void assert_converges(struct sim *s)
{
	assert_true(sim_run_until(s, sim_is_converged, 120 * S));
}

void assert_well(struct sim *s)
{
	uint64_t had[16];
	unsigned n = s->options.n_nodes;

	sim_run(s, 60 * S);
	assert_true(sim_run_until(s, sim_is_idle,
				  20 * S)); /* a source of repairs stays for some seconds */
	for (unsigned i = 0; i < n; i++)
		assert_true(sim_train(s, i, SIM_BUFFER));
	scene_note(s, had);
	average_and_wait(s, "committed");
	assert_mean_of(s, had, (1u << n) - 1);
	assert_converges(s);
}

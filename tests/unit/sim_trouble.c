#include "sim_trouble.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "ipc/base/num.h"
#include "scene.h"
#include "sim_jobs.h"
#include "sim_link.h"
#include "tests/unit/long_form.h"

void sim_play(unsigned n_seeds, void (*play)(uint64_t seed))
{
	const char *seeds = getenv("SIM_SEEDS"), *first = getenv("SIM_FIRST");
	uint64_t from = first ? strtoull(first, NULL, 10) : 1;

	n_seeds = is_long_form() ? n_seeds : n_seeds / 3;
	for (uint64_t seed = from; seed < from + (seeds ? strtoull(seeds, NULL, 10) : n_seeds);
	     seed++) {
		snprintf(scene, sizeof(scene), "SIM_FIRST=%ju SIM_SEEDS=1", (uintmax_t)seed);
		play(seed);
	}
	scene[0] = '\0';
}

/* --- Trouble for one node ---------------------------------------------------------------------- */

static void die(struct sim *s, struct sim_node *n)
{
	sim_kill(s, n->index);
}

static void come_back(struct sim *s, struct sim_node *n)
{
	if (!n->agent)
		sim_start(s, n->index);
}

static void cut(struct sim *s, struct sim_node *n, bool is_cut)
{
	unsigned other = (unsigned)sim_random(s, s->options.n_nodes);

	if (other != n->index)
		sim_cut(s, n->index, other, is_cut);
}

static void be_cut(struct sim *s, struct sim_node *n)
{
	cut(s, n, true);
}

static void be_joined(struct sim *s, struct sim_node *n)
{
	cut(s, n, false);
}

static void lose_a_job(struct sim *s, struct sim_node *n)
{
	static const enum job_kind KINDS[] = {JOB_SOURCE, JOB_SINK, JOB_GLOO, JOB_TCP, JOB_PLANNER};

	(void)sim_kill_job(s, n->index, KINDS[sim_random(s, ARRAY_LEN(KINDS))]);
}

static void get_wrong_bytes(struct sim *s, struct sim_node *n)
{
	n->n_corrupt = (unsigned)sim_random(s, 4);
}

static void be_sick(struct sim *s, struct sim_node *n)
{
	bool *const WAYS[] = {&n->sinks_fail, &n->sources_fail, &n->planners_fail, &n->engines_hang,
			      &n->jobs_hang,  &n->is_silent,    &n->lies};

	*WAYS[sim_random(s, ARRAY_LEN(WAYS))] = true;
	n->others = 1 + (sim_random(s, 4) == 0);
}

/* Messages of a silent node are lost, and so real connections would break. */
static void be_well(struct sim *s, struct sim_node *n)
{
	if (n->is_silent)
		sim_link_drop_all(s, n->index);
	n->sinks_fail = n->sources_fail = n->planners_fail = n->engines_hang = n->jobs_hang =
		n->is_silent = n->lies = false;
	n->others = 1;
	n->n_corrupt = 0;
}

static void die_while_it_saves(struct sim *s, struct sim_node *n)
{
	n->die_at_save = n->n_saves + 1 + (unsigned)sim_random(s, 3);
	n->die_before_it = sim_random(s, 2);
}

static void die_and_forget(struct sim *s, struct sim_node *n)
{
	if (sim_random(s, 4) != 0)
		return;
	sim_kill(s, n->index);
	sim_lose_data(s, n->index);
}

static void cancel(struct sim *s, struct sim_node *n)
{
	cleanup(json_freep) json_t *rows = n->agent ? agent_status(n->agent, NULL) : NULL;
	const json_t *row = json_array_get(rows, sim_random(s, json_array_size(rows)));
	char why[WHY_SIZE];

	if (row)
		(void)agent_cancel(n->agent, sim_text(row, "sync"), why);
}

/* An entry is as likely as it is frequent. */
static void (*const TROUBLES[])(struct sim *s, struct sim_node *n) = {
	die,       come_back,  come_back,          be_cut,          be_joined,
	be_joined, lose_a_job, lose_a_job,         get_wrong_bytes, be_sick,
	be_well,   be_well,    die_while_it_saves, die_and_forget,  cancel};

void sim_trouble(struct sim *s, unsigned n_times, void (*ask)(struct sim *s, unsigned node))
{
	for (unsigned i = 0; i < n_times; i++) {
		size_t what = sim_random(s, 10 + ARRAY_LEN(TROUBLES));
		unsigned node = (unsigned)sim_random(s, s->options.n_nodes);

		sim_run(s, sim_random(s, 3 * SIM_SECOND));
		if (what < ARRAY_LEN(TROUBLES))
			TROUBLES[what](s, &s->nodes[node]);
		else
			ask(s, node % 2);
	}
}

void sim_end_trouble(struct sim *s)
{
	for (unsigned i = 0; i < s->options.n_nodes; i++) {
		struct sim_node *n = &s->nodes[i];

		be_well(s, n);
		n->die_at_save = 0;
		for (unsigned j = 0; j < i; j++)
			sim_cut(s, i, j, false);
		come_back(s, n);
	}
}

/*
 * The times are of the last complete step of each rank. A rank that computes longer than another one makes it wait for the
 * difference.
 */
#include "libclient/weightctl/verbs/train_explain.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "libclient/weightctl/output/escape.h"
#include "libclient/weightctl/output/size.h"
#include "libclient/weightctl/server.h"
#include "libclient/weightctl/verbs/job_ranks.h"

#define PERCENT_MIN 5 /* share of a step in waits that is worth a verdict */

static double whole(const struct weightd_rank_status *rank)
{
	return rank->computing_s + rank->waiting_s + rank->updating_s;
}

static double percent(double part, double of)
{
	return of > 0 ? 100 * part / of : 0;
}

/* Ranks at the two ends: the one that waited most, and the one that computed longest. */
struct extremes {
	struct weightd_rank_status waited, computed;
	uint64_t step; /* completed by all */
};

static struct extremes find_extremes(const struct weightd_train_status *status)
{
	struct extremes e = {.waited = job_ranks_get(status, 0)};

	e.computed = e.waited;
	e.step = e.waited.step;
	for (uint32_t i = 1; i < job_ranks_count(status); i++) {
		struct weightd_rank_status rank = job_ranks_get(status, i);

		if (rank.waiting_s > e.waited.waiting_s)
			e.waited = rank;
		if (rank.computing_s > e.computed.computing_s)
			e.computed = rank;
		if (rank.step < e.step)
			e.step = rank.step;
	}
	return e;
}

static bool has_waited(const struct extremes *e)
{
	return percent(e->waited.waiting_s, whole(&e->waited)) >= PERCENT_MIN;
}

/* The computing of one rank explains most of the wait of another. */
static bool has_straggler(const struct extremes *e)
{
	return has_waited(e) &&
	       e->computed.computing_s - e->waited.computing_s > e->waited.waiting_s / 2;
}

/* --- In words ----------------------------------------------------------------------------------- */

static void put_time(const char *verb, double seconds, const struct weightd_rank_status *rank)
{
	char text[SIZE_TEXT_MAX];

	(void)printf("%s %s (%.0f %%)", verb, size_duration(text, job_ranks_ns(seconds)),
		     percent(seconds, whole(rank)));
}

static void put_traffic(const struct weightd_rank_status *rank,
			const struct weightd_train_status *status)
{
	char read[SIZE_TEXT_MAX], written[SIZE_TEXT_MAX], sent[SIZE_TEXT_MAX];
	uint32_t n_dims = job_ranks_n_dims(status);

	(void)printf("%s read and %s written along %s", size_text(read, rank->read),
		     size_text(written, rank->written), job_ranks_dim(status, n_dims - 1));
	if (job_ranks_nodes(status) > 1)
		(void)printf(", %s sent to other nodes", size_text(sent, rank->sent));
	if (n_dims > 1)
		(void)printf(", %s of it along %s", size_text(sent, rank->sent_replicas),
			     job_ranks_dim(status, 0));
}

static void put_rank(const struct weightd_rank_status *rank,
		     const struct weightd_train_status *status)
{

	(void)printf("rank %" PRIu32 ", %s: ", rank->mesh_rank,
		     weightd_rank_phase_name(rank->phase));
	if (!rank->step) {
		(void)puts("no step is complete");
		return;
	}
	put_time("computed", rank->computing_s, rank);
	put_time(", waited", rank->waiting_s, rank);
	put_time(", updated", rank->updating_s, rank);
	(void)printf("\n  step %" PRIu64 ", ", rank->step);
	if (isfinite(rank->loss))
		(void)printf("loss %.6g, ", rank->loss);
	put_traffic(rank, status);
	(void)putchar('\n');
}

static void put_verdict(const struct extremes *e, uint32_t n_nodes)
{
	char computed[SIZE_TEXT_MAX], waited[SIZE_TEXT_MAX];

	if (!e->step)
		(void)puts("Not all ranks have completed a step.");
	else if (has_straggler(e))
		(void)printf("Rank %" PRIu32 " holds the others up: it computed %s, and rank %" PRIu32
			     " waited %s.\n",
			     e->computed.mesh_rank,
			     size_duration(computed, job_ranks_ns(e->computed.computing_s)),
			     e->waited.mesh_rank,
			     size_duration(waited, job_ranks_ns(e->waited.waiting_s)));
	else if (has_waited(e))
		(void)printf("Rank %" PRIu32
			     " waited %s, and no rank%s computed that much longer: see "
			     "if each rank has a CPU of its own%s.\n",
			     e->waited.mesh_rank,
			     size_duration(waited, job_ranks_ns(e->waited.waiting_s)),
			     n_nodes > 1 ? " of this node" : "",
			     n_nodes > 1 ? ", and look at the other nodes and the network" : "");
	else
		(void)printf("No rank waited for more than %d %% of the last step.\n", PERCENT_MIN);
}

static void put_job(const struct job_ranks_job *job)
{
	struct extremes e = find_extremes(job->status);
	uint32_t n = job_ranks_count(job->status), n_nodes = job_ranks_nodes(job->status);
	struct job_wait wait;

	(void)fputs("Job ", stdout);
	escape_text(stdout, job->name);
	(void)printf(" has %" PRIu32 " rank%s", n, n == 1 ? "" : "s");
	if (n_nodes > 1)
		(void)printf(" of node %" PRIu32 " of %" PRIu32, e.waited.mesh_rank / n, n_nodes);
	(void)printf(", and completed step %" PRIu64 ". Times are of the last step of each rank.\n",
		     e.step);
	for (uint32_t i = 0; i < n; i++) {
		struct weightd_rank_status rank = job_ranks_get(job->status, i);

		put_rank(&rank, job->status);
	}
	put_verdict(&e, n_nodes);
	if (!job_wait_find(job->status, &wait))
		return;
	(void)fputs("Now ", stdout);
	job_wait_put(&wait, stdout);
	(void)puts(".");
}

/* --- In JSON ------------------------------------------------------------------------------------ */

static int print_json(const struct cli *cli, const struct job_ranks *ranks)
{
	struct extremes e = find_extremes(ranks->jobs->status);
	struct json json = {.file = stdout};
	int r;

	json_open(&json, NULL, '{');
	json_put_string(&json, "job", ranks->jobs->name);
	json_put_number(&json, "step", e.step);
	if (e.step && has_straggler(&e))
		json_put_number(&json, "straggler", e.computed.mesh_rank);
	else
		json_put_null(&json, "straggler");
	r = job_ranks_print(cli, ranks, stdout, &json, false);
	json_close(&json, '}');
	return r;
}

int train_explain_job(struct cli *cli, char *job)
{
	cleanup(job_ranks_deinit) struct job_ranks ranks = {};

	if (server_connect(cli) || job_ranks_fetch(cli, &job, 1, &ranks))
		return EXIT_FAILED;
	if (cli->format.json)
		return print_json(cli, &ranks);
	put_job(ranks.jobs);
	return 0;
}

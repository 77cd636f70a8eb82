/*
 * weightctl train metrics: the ranks of all jobs that the caller may see, as OpenMetrics text.
 */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>

#include "libclient/weightctl/output/json_field.h"
#include "libclient/weightctl/server.h"
#include "libclient/weightctl/verb.h"
#include "libclient/weightctl/verbs/job_ranks.h"
#include "libclient/weightctl/verbs/openmetrics.h"

/* The value of one metric for a rank. NULL: it has none now. */
typedef json_t *value_fn(const struct weightd_rank_status *rank);

static json_t *count(uint64_t n)
{
	return json_pack("{sI}", "value", n <= INT64_MAX ? (json_int_t)n : INT64_MAX);
}

static json_t *duration(double seconds)
{
	uint64_t ns = job_ranks_ns(seconds);

	return ns != UINT64_MAX ? json_pack("{sI}", "value_ns", (json_int_t)ns) : NULL;
}

static json_t *value_step(const struct weightd_rank_status *rank)
{
	return count(rank->step);
}

static json_t *value_loss(const struct weightd_rank_status *rank)
{
	return isfinite(rank->loss) ? json_pack("{sf}", "value_real", rank->loss) : NULL;
}

static json_t *value_present(const struct weightd_rank_status *rank)
{
	return count(rank->pid != 0);
}

static json_t *value_computing(const struct weightd_rank_status *rank)
{
	return duration(rank->computing_s);
}

static json_t *value_waiting(const struct weightd_rank_status *rank)
{
	return duration(rank->waiting_s);
}

static json_t *value_updating(const struct weightd_rank_status *rank)
{
	return duration(rank->updating_s);
}

static json_t *value_wait(const struct weightd_rank_status *rank)
{
	return rank->phase == WEIGHTD_RANK_WAITING ? duration(rank->since_s) : NULL;
}

static json_t *value_read(const struct weightd_rank_status *rank)
{
	return count(rank->read);
}

static json_t *value_written(const struct weightd_rank_status *rank)
{
	return count(rank->written);
}

static json_t *value_sent(const struct weightd_rank_status *rank)
{
	return count(rank->sent);
}

static const struct family {
	const char *name, *type, *unit, *help;
	value_fn *value;
	bool has_dim, has_straggler; /* labels: dim; waits_for and what */
} families[] = {
	{"weightd_train_steps", "counter", NULL, "Steps that the rank has completed", value_step,
	 false, false},
	{"weightd_train_loss", "gauge", NULL, "Loss that the rank gave last", value_loss, false,
	 false},
	{"weightd_train_present", "gauge", NULL, "1: a process is the rank", value_present, false,
	 false},
	{"weightd_train_computing_seconds", "gauge", "seconds",
	 "Time of the last complete step in the caller's work", value_computing, false, false},
	{"weightd_train_waiting_seconds", "gauge", "seconds",
	 "Time of the last complete step in waits for other ranks", value_waiting, false, false},
	{"weightd_train_updating_seconds", "gauge", "seconds",
	 "Time of the last complete step in sums and updates", value_updating, false, false},
	{"weightd_train_wait_seconds", "gauge", "seconds",
	 "Time that the rank has waited for another one, until now", value_wait, false, true},
	{"weightd_train_read_bytes", "counter", "bytes", "Bytes that the rank read of other ranks",
	 value_read, true, false},
	{"weightd_train_written_bytes", "counter", "bytes",
	 "Bytes that the rank wrote for other ranks", value_written, true, false},
	{"weightd_train_sent_bytes", "counter", "bytes",
	 "Payload bytes that the rank sent to other nodes", value_sent, true, false},
};

static void set_label(json_t *labels, const char *key, json_t *value)
{
	if (json_object_set_new(labels, key, value) < 0)
		cli_out_of_memory();
}

/* The rank that it waits for, or "node 1". */
static json_t *straggler_of(const struct weightd_rank_status *rank)
{
	uint32_t node = job_ranks_waits_node(rank), other = job_ranks_waits(rank);

	if (node != UINT32_MAX)
		return json_sprintf("node %" PRIu32, node);
	return other != UINT32_MAX ? json_sprintf("%" PRIu32, other) : json_string("");
}

static json_t *make_labels(const struct family *family, const struct job_ranks_job *job,
			   const struct weightd_rank_status *rank, uint32_t dim)
{
	json_t *labels = json_object();

	set_label(labels, "job", json_string(job->name));
	set_label(labels, "rank", json_sprintf("%" PRIu32, rank->mesh_rank));
	if (family->has_dim)
		set_label(labels, "dim", json_string(job_ranks_dim(job->status, dim)));
	if (family->has_straggler) {
		set_label(labels, "waits_for", straggler_of(rank));
		set_label(labels, "what", json_string(rank->what));
	}
	return labels;
}

/* Its bytes along one dimension of the mesh. */
static struct weightd_rank_status along(const struct weightd_rank_status *rank, bool is_last)
{
	struct weightd_rank_status r = *rank;

	r.read = is_last ? r.read : 0;
	r.written = is_last ? r.written : 0;
	r.sent = is_last ? r.sent - r.sent_replicas : r.sent_replicas;
	return r;
}

static void add_samples(const struct family *family, const struct job_ranks_job *job, uint32_t k,
			json_t *samples)
{
	struct weightd_rank_status rank = job_ranks_get(job->status, k);
	uint32_t n_dims = job_ranks_n_dims(job->status);

	for (uint32_t dim = family->has_dim ? 0 : n_dims - 1; dim < n_dims; dim++) {
		struct weightd_rank_status part = along(&rank, dim + 1 == n_dims);
		json_t *sample = family->value(&part);

		if (!sample)
			continue;
		set_label(sample, "labels", make_labels(family, job, &part, dim));
		if (json_array_append_new(samples, sample) < 0)
			cli_out_of_memory();
	}
}

static json_t *make_samples(const struct family *family, const struct job_ranks *ranks)
{
	json_t *samples = json_array();

	for (size_t i = 0; i < ranks->n_jobs; i++)
		for (uint32_t k = 0; k < job_ranks_count(ranks->jobs[i].status); k++)
			add_samples(family, &ranks->jobs[i], k, samples);
	return samples;
}

static json_t *make_rows(const struct job_ranks *ranks)
{
	json_t *rows = json_array();

	for (size_t i = 0; i < sizeof(families) / sizeof(*families); i++) {
		const struct family *f = &families[i];
		json_t *row = json_pack("{ss ss ss* ss so}", "metric", f->name, "type", f->type,
					"unit", f->unit, "help", f->help, "samples",
					make_samples(f, ranks));

		if (!row || json_array_append_new(rows, row) < 0)
			cli_out_of_memory();
	}
	return rows;
}

static int train_metrics(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		{"output", required_argument, NULL, 'O'},
		OPTIONS_COMMON,
		{},
	};
	cleanup(job_ranks_deinit) struct job_ranks ranks = {};
	cleanup(json_decrefp) json_t *rows = NULL;
	const char *path = openmetrics_path(cli, argc, argv, longs);

	if (server_connect(cli) || job_ranks_fetch(cli, NULL, 0, &ranks))
		return EXIT_FAILED;
	rows = make_rows(&ranks);
	return openmetrics_write(rows, path);
}

const struct verb verb_train_metrics = {
	.name = "train metrics",
	.args = "",
	.summary = "Print the ranks of all jobs, as OpenMetrics",
	.options = "     --output FILE      replace this file, whole, instead of printing\n",
	.run = train_metrics,
};

/*
 * Rows show the words of ranks, which may have any value.
 */
#include "libclient/weightctl/verbs/job_ranks.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "libclient/weightctl/output/escape.h"
#include "libclient/weightctl/output/size.h"
#include "libclient/weightctl/output/table.h"

#define NS_MAX 9e18 /* as a double: below UINT64_MAX */

struct rank_row {
	const char *job, *dim;
	struct weightd_rank_status rank;
	uint32_t pid; /* UINT32_MAX: none that this process can see */
	uint32_t waits, waits_node;
	char waits_text[sizeof("node 4294967295")]; /* empty: none */
	uint64_t since_ns, computed_ns, waited_ns, updated_ns;
};

#define ROW(member) offsetof(struct rank_row, member)

static const char *rank_phase(const void *row, bool json)
{
	(void)json;
	return weightd_rank_phase_name(((const struct rank_row *)row)->rank.phase);
}

static const char *rank_topic(const void *row, bool json)
{
	const char *what = ((const struct rank_row *)row)->rank.what;

	(void)json;
	return *what ? what : NULL;
}

static const char *rank_waits(const void *row, bool json)
{
	const char *text = ((const struct rank_row *)row)->waits_text;

	(void)json;
	return *text ? text : NULL;
}

const struct column job_ranks_columns[] = {
	{"JOB", COLUMN_TEXT, ROW(job), .help = "name of the job", .shown = true, .cut = true,
	 .width = 0.15},
	{"RANK", COLUMN_U32, ROW(rank.mesh_rank), .help = "number of the rank in the mesh",
	 .shown = true},
	{"STEP", COLUMN_U64, ROW(rank.step), .help = "steps that it has completed", .shown = true},
	{"LOSS", COLUMN_DOUBLE, ROW(rank.loss), .help = "loss that it gave last", .shown = true},
	{"PHASE", COLUMN_WORD, .word = rank_phase,
	 .help = "computing, waiting, updating, gone or done", .shown = true},
	{"FOR", COLUMN_DURATION, ROW(since_ns), .help = "time in this phase", .shown = true},
	{"WAITS", COLUMN_INDEX, ROW(waits), .word = rank_waits,
	 .help = "rank that it waits for, or node; in JSON the rank", .shown = true},
	{"NODE", COLUMN_INDEX, ROW(waits_node), .help = "node that it waits for"},
	{"WHAT", COLUMN_WORD, .word = rank_topic,
	 .help = "awaited: gradients, sums, parameters, units, values, nodes"},
	{"COMPUTED", COLUMN_DURATION, ROW(computed_ns),
	 .help = "part of the last complete step: the caller's work", .shown = true},
	{"WAITED", COLUMN_DURATION, ROW(waited_ns), .help = "likewise: waits for other ranks",
	 .shown = true},
	{"UPDATED", COLUMN_DURATION, ROW(updated_ns), .help = "likewise: sums and updates"},
	{"DIM", COLUMN_TEXT, ROW(dim),
	 .help = "dimension of the mesh of READ, WRITTEN, and SENT but for REPLICAS"},
	{"READ", COLUMN_SIZE, ROW(rank.read), .help = "bytes that it read of other ranks"},
	{"WRITTEN", COLUMN_SIZE, ROW(rank.written), .help = "bytes that it wrote for other ranks"},
	{"SENT", COLUMN_SIZE, ROW(rank.sent), .help = "bytes that it sent to other nodes"},
	{"REPLICAS", COLUMN_SIZE, ROW(rank.sent_replicas),
	 .help = "of these: along the first of two dimensions, to other replicas"},
	{"PID", COLUMN_INDEX, ROW(pid), .help = "its process"},
	{},
};

/* --- Reading ------------------------------------------------------------------------------------ */

void job_ranks_deinit(struct job_ranks *r)
{
	for (size_t i = 0; i < r->n_jobs; i++) {
		free(r->jobs[i].name);
		weightd_train_status_free(r->jobs[i].status);
	}
	free(r->jobs);
}

/* Takes ownership of the status. */
static void job_ranks_add(struct job_ranks *r, const char *name, struct weightd_train_status *status)
{
	struct job_ranks_job job = {.name = strdup(name), .status = status};

	if (!job.name)
		cli_out_of_memory();
	r->jobs = cli_grown(r->jobs, r->n_jobs, sizeof(*r->jobs));
	r->jobs[r->n_jobs++] = job;
}

/* A job that has ended meanwhile, that has not begun, or whose ranks do not train. */
static bool is_skipped(int r)
{
	return r == -ENOENT || r == -ENODATA || r == -EPROTOTYPE;
}

static int fetch_all(struct cli *cli, struct job_ranks *ret)
{
	cleanup(cli_list_freep) struct weightd_list *list = NULL;
	const struct weightd_job_info *info;
	int r = weightd_list_jobs(cli->w, &list);

	if (r < 0)
		return cli_fail(cli, r);
	for (size_t i = 0; (info = weightd_list_job(list, i)); i++) {
		struct weightd_train_status *status;

		r = weightd_train_status_read(cli->w, info->name, &status);
		if (r == 0)
			job_ranks_add(ret, info->name, status);
		else if (!is_skipped(r))
			return cli_error("%s", weightd_train_error());
	}
	return 0;
}

int job_ranks_fetch(struct cli *cli, char *const names[], size_t n_names, struct job_ranks *ret)
{
	if (!n_names)
		return fetch_all(cli, ret);
	for (size_t i = 0; i < n_names; i++) {
		struct weightd_train_status *status;

		if (weightd_train_status_read(cli->w, names[i], &status) < 0)
			return cli_error("%s", weightd_train_error());
		job_ranks_add(ret, names[i], status);
	}
	return 0;
}

static const struct weightd_mesh *mesh_of(const struct weightd_train_status *status)
{
	return weightd_plan_mesh(weightd_train_status_plan(status));
}

uint32_t job_ranks_count(const struct weightd_train_status *status)
{
	return weightd_train_status_n_ranks(status);
}

uint32_t job_ranks_nodes(const struct weightd_train_status *status)
{
	return weightd_mesh_n_ranks(mesh_of(status)) / job_ranks_count(status);
}

uint32_t job_ranks_n_dims(const struct weightd_train_status *status)
{
	return weightd_mesh_n_dims(mesh_of(status));
}

const char *job_ranks_dim(const struct weightd_train_status *status, uint32_t dim)
{
	struct weightd_mesh_dim found;

	return weightd_mesh_dim(mesh_of(status), dim, &found) == 0 ? found.name : NULL;
}

struct weightd_rank_status job_ranks_get(const struct weightd_train_status *status, uint32_t rank)
{
	struct weightd_rank_status s = {.size = sizeof(s)};

	(void)weightd_train_status_rank(status, rank, &s); /* the rank exists */
	return s;
}

static bool waits_for_node(const struct weightd_rank_status *rank)
{
	return rank->phase == WEIGHTD_RANK_WAITING && !strcmp(rank->what, "nodes");
}

uint32_t job_ranks_waits(const struct weightd_rank_status *rank)
{
	if (rank->waits_for == UINT32_MAX || waits_for_node(rank))
		return UINT32_MAX;
	return rank->mesh_rank - rank->rank + rank->waits_for;
}

uint32_t job_ranks_waits_node(const struct weightd_rank_status *rank)
{
	return waits_for_node(rank) ? rank->waits_for : UINT32_MAX;
}

uint64_t job_ranks_ns(double seconds)
{
	return seconds >= 0 && seconds * 1e9 < NS_MAX ? (uint64_t)(seconds * 1e9 + 0.5) : UINT64_MAX;
}

/* --- Waits -------------------------------------------------------------------------------------- */

/*
 * The end of the chain of waits. A rank that was woken, and has no CPU yet, shows its wait: such a chain may be a circle, and
 * ends after as many steps.
 */
static struct weightd_rank_status follow(const struct weightd_train_status *status,
					 struct weightd_rank_status rank)
{
	uint32_t n = job_ranks_count(status);

	for (uint32_t i = 0; i < n && rank.phase == WEIGHTD_RANK_WAITING && rank.waits_for < n &&
			     !waits_for_node(&rank);
	     i++)
		rank = job_ranks_get(status, rank.waits_for);
	return rank;
}

bool job_wait_find(const struct weightd_train_status *status, struct job_wait *ret)
{
	uint32_t n_waiting = 0;

	for (uint32_t i = 0; i < job_ranks_count(status); i++) {
		struct weightd_rank_status rank = job_ranks_get(status, i);

		if (rank.phase != WEIGHTD_RANK_WAITING || rank.waits_for == UINT32_MAX)
			continue;
		if (!n_waiting++ || rank.since_s > ret->rank.since_s)
			ret->rank = rank;
	}
	if (!n_waiting)
		return false;
	ret->straggler = follow(status, ret->rank);
	ret->node = job_ranks_waits_node(&ret->straggler);
	ret->n_others = n_waiting - 1;
	return ret->node != UINT32_MAX || ret->straggler.phase != WEIGHTD_RANK_WAITING;
}

void job_wait_put(const struct job_wait *wait, FILE *f)
{
	char text[SIZE_TEXT_MAX];

	(void)fprintf(f, "rank %" PRIu32 " waits %s for ", wait->rank.mesh_rank,
		      size_duration(text, job_ranks_ns(wait->rank.since_s)));
	if (wait->node != UINT32_MAX)
		(void)fprintf(f, "node %" PRIu32, wait->node);
	else
		(void)fprintf(f, "rank %" PRIu32 " (%s)", wait->straggler.mesh_rank,
			      weightd_rank_phase_name(wait->straggler.phase));
	if (wait->n_others)
		(void)fprintf(f, "; %" PRIu32 " other rank%s", wait->n_others,
			      wait->n_others == 1 ? " waits" : "s wait");
}

/* --- Printing ----------------------------------------------------------------------------------- */

static void name_wait(struct rank_row *row)
{
	if (row->waits_node != UINT32_MAX)
		(void)snprintf(row->waits_text, sizeof(row->waits_text), "node %" PRIu32,
			       row->waits_node);
	else if (row->waits != UINT32_MAX)
		(void)snprintf(row->waits_text, sizeof(row->waits_text), "%" PRIu32, row->waits);
}

static struct rank_row row_of(const struct job_ranks_job *job, uint32_t rank)
{
	struct rank_row row = {
		.job = job->name,
	};

	row.dim = job_ranks_dim(job->status, job_ranks_n_dims(job->status) - 1);
	row.rank = job_ranks_get(job->status, rank);
	row.waits = job_ranks_waits(&row.rank);
	row.waits_node = job_ranks_waits_node(&row.rank);
	name_wait(&row);
	row.pid = row.rank.pid > 0 ? (uint32_t)row.rank.pid : UINT32_MAX;
	row.since_ns = job_ranks_ns(row.rank.since_s);
	row.computed_ns = job_ranks_ns(row.rank.computing_s);
	row.waited_ns = job_ranks_ns(row.rank.waiting_s);
	row.updated_ns = job_ranks_ns(row.rank.updating_s);
	return row;
}

static void put_waits_json(const struct job_ranks *r, struct json *json)
{
	json_open(json, "waits", '[');
	for (size_t i = 0; i < r->n_jobs; i++) {
		struct job_wait wait;

		if (!job_wait_find(r->jobs[i].status, &wait))
			continue;
		json_open(json, NULL, '{');
		json_put_string(json, "job", r->jobs[i].name);
		json_put_number(json, "rank", wait.rank.mesh_rank);
		if (wait.node != UINT32_MAX) {
			json_put_number(json, "node", wait.node);
		} else {
			json_put_number(json, "straggler", wait.straggler.mesh_rank);
			json_put_string(json, "phase",
					weightd_rank_phase_name(wait.straggler.phase));
		}
		json_put_number(json, "for_ns", job_ranks_ns(wait.rank.since_s));
		json_close(json, '}');
	}
	json_close(json, ']');
}

static void put_waits(const struct job_ranks *r, FILE *f)
{
	for (size_t i = 0; i < r->n_jobs; i++) {
		struct job_wait wait;

		if (!job_wait_find(r->jobs[i].status, &wait))
			continue;
		escape_text(f, r->jobs[i].name);
		(void)fputs(": ", f);
		job_wait_put(&wait, f);
		(void)fputc('\n', f);
	}
}

int job_ranks_print(const struct cli *cli, const struct job_ranks *r, FILE *f, struct json *json,
		    bool is_redrawn)
{
	cleanup(table_deinit) struct table table = {};
	int status;

	table_init(&table, &cli->format, job_ranks_columns);
	table.out = f;
	table.is_redrawn = is_redrawn;
	table_begin(&table, json, "ranks");
	for (size_t i = 0; i < r->n_jobs; i++)
		for (uint32_t rank = 0; rank < job_ranks_count(r->jobs[i].status); rank++) {
			struct rank_row row = row_of(&r->jobs[i], rank);

			table_row(&table, &row);
		}
	status = table_end(&table);
	if (cli->format.json)
		put_waits_json(r, json);
	else if (!cli->format.columns && !cli->format.noheadings)
		put_waits(r, f);
	return status;
}

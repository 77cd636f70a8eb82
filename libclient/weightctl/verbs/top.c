/*
 * weightctl top: print the present traffic of each sync's sockets, as the kernel counts it, or the ranks of a training job.
 *
 * A rate covers the time since the previous frame; in the first frame of a row, the time since it began.
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "libclient/weightctl/control/control_client.h"
#include "libclient/weightctl/output/clock.h"
#include "libclient/weightctl/output/json_field.h"
#include "libclient/weightctl/output/ports.h"
#include "libclient/weightctl/output/redraw.h"
#include "libclient/weightctl/output/table.h"
#include "libclient/weightctl/output/trace_row.h"
#include "libclient/weightctl/server.h"
#include "libclient/weightctl/signals.h"
#include "libclient/weightctl/verb.h"
#include "libclient/weightctl/verbs/job_ranks.h"

enum option_of_top {
	OPTION_DELAY = OPTION_OWN,
	OPTION_ONCE,
	OPTION_SORT,
	OPTION_SYNC,
	OPTION_PEER,
	OPTION_ROLE,
	OPTION_TRANSPORT,
	OPTION_PROCESS,
	OPTION_CONTAINER,
	OPTION_CGROUP,
	OPTION_JOB,
};

struct top {
	struct cli *cli;
	char *job; /* shows its ranks, and no traffic; NULL: traffic */
	const struct column *sort;
	const char *sync, *peer, *role, *transport, *process, *container, *cgroup; /* NULL: any */
	int delay_ms;
	bool once;
	struct ports ports;
	json_t *before; /* rows of the last frame, by their numbers; NULL: this is the first */
	bool has_printed;
	struct redraw redraw;
};

/* The key of a row in a frame: a text, because JSON has no other keys. */
static void key_of(const json_t *row, char ret[32])
{
	(void)snprintf(ret, 32, "%" PRIu64, json_field_number(row, "row", UINT64_MAX));
}

static struct trace_row row_in(const struct top *top, const json_t *row)
{
	char key[32];

	key_of(row, key);
	return trace_row_of(row, json_object_get(top->before, key));
}

static int compare_texts(const char *a, const char *b)
{
	if (!a || !b)
		return !a - !b;
	return strcmp(a, b);
}

/* The greatest first, unknown ones last. */
static int compare_numbers(uint64_t a, uint64_t b)
{
	a += 1; /* UINT64_MAX is the least */
	b += 1;
	return (a < b) - (a > b);
}

static bool is_text(const struct column *c)
{
	return c->kind == COLUMN_TEXT || c->kind == COLUMN_WORD;
}

static const char *text_at(const struct trace_row *f, const struct column *c)
{
	if (c->kind == COLUMN_WORD)
		return c->word(f, false);
	return *(const char *const *)(const void *)((const char *)f + c->offset);
}

static uint64_t number_at(const struct trace_row *f, const struct column *c)
{
	const void *v = (const char *)f + c->offset;
	uint32_t index;

	if (c->kind == COLUMN_BOOL)
		return *(const bool *)v;
	if (c->kind != COLUMN_INDEX)
		return *(const uint64_t *)v;
	index = *(const uint32_t *)v;
	return index < UINT32_MAX ? index : UINT64_MAX;
}

static int top_compare(const void *left, const void *right, void *sort)
{
	const struct trace_row *a = left, *b = right;
	const struct column *c = sort;
	int r = is_text(c) ? compare_texts(text_at(a, c), text_at(b, c))
			   : compare_numbers(number_at(a, c), number_at(b, c));

	return r ? r : compare_numbers(b->number, a->number);
}

static bool text_equals(const char *text, const char *wanted)
{
	return !wanted || (text && !strcmp(text, wanted));
}

static bool text_begins(const char *text, const char *wanted)
{
	return !wanted || (text && !strncmp(text, wanted, strlen(wanted)));
}

/* A group, or one below it. */
static bool is_below(const char *path, const char *wanted)
{
	size_t n = wanted ? strlen(wanted) : 0;

	while (n > 0 && wanted[n - 1] == '/')
		n--;
	return !wanted || (path && !strncmp(path, wanted, n) && (!path[n] || path[n] == '/'));
}

static bool is_process(const struct trace_row *f, const char *wanted)
{
	char pid[16];

	(void)snprintf(pid, sizeof(pid), "%" PRIu32, f->pid);
	return text_equals(f->process, wanted) || (f->pid != UINT32_MAX && !strcmp(pid, wanted));
}

static bool is_wanted(const struct top *top, const struct trace_row *f)
{
	return text_begins(f->sync, top->sync) && text_equals(f->peer, top->peer) &&
	       text_equals(f->role, top->role) && text_equals(f->transport, top->transport) &&
	       is_process(f, top->process) && text_begins(f->container, top->container) &&
	       is_below(f->cgroup, top->cgroup);
}

/* Those that are wanted, sorted; the caller frees them. Their texts are those of `rows`. */
static struct trace_row *take_rows(const struct top *top, const json_t *rows, size_t *ret_n)
{
	struct trace_row *shown = calloc(json_array_size(rows) + 1, sizeof(*shown));
	const json_t *row;
	size_t i, n = 0;

	if (!shown)
		cli_out_of_memory();
	json_array_foreach(rows, i, row)
	{
		shown[n] = row_in(top, row);
		n += is_wanted(top, &shown[n]);
	}
	qsort_r(shown, n, sizeof(*shown), top_compare, (void *)top->sort);
	*ret_n = n;
	return shown;
}

static bool draws(const struct top *top)
{
	return !top->cli->format.json && !top->once && redraw_is_possible();
}

static int top_print(const struct top *top, FILE *f, const json_t *rows)
{
	static const struct column time_column = COLUMN("TIME", COLUMN_TIME, 0);
	cleanup(table_deinit) struct table table = {};
	struct json json = {.file = f, .is_line = true};
	uint64_t now_ns = clock_ns(CLOCK_REALTIME);
	size_t n;
	cleanup(cli_freep) struct trace_row *shown = take_rows(top, rows, &n);
	int r;

	table_init(&table, &top->cli->format, trace_row_columns);
	table.out = f;
	table.is_redrawn = draws(top);
	if (top->cli->format.json) {
		json_open(&json, NULL, '{');
		column_json(&time_column, &now_ns, &json);
	}
	table_begin(&table, &json, "rows");
	for (size_t i = 0; i < n; i++)
		table_row(&table, &shown[i]);
	r = table_end(&table);
	if (top->cli->format.json) {
		ports_json(&top->ports, &json);
		json_close(&json, '}');
		return r;
	}
	if (!n)
		(void)fprintf(f, "nothing %sis counted now\n",
			      json_array_size(rows) ? "of that kind " : "");
	if (!top->cli->format.columns && !top->cli->format.noheadings)
		ports_print(&top->ports, f);
	return r;
}

static int top_print_job(const struct top *top, FILE *f)
{
	static const struct column time_column = COLUMN("TIME", COLUMN_TIME, 0);
	cleanup(job_ranks_deinit) struct job_ranks ranks = {};
	struct json json = {.file = f, .is_line = true};
	uint64_t now_ns = clock_ns(CLOCK_REALTIME);
	char *names[] = {top->job};
	int r;

	if (job_ranks_fetch(top->cli, names, 1, &ranks))
		return EXIT_FAILED;
	if (top->cli->format.json) {
		json_open(&json, NULL, '{');
		column_json(&time_column, &now_ns, &json);
	}
	r = job_ranks_print(top->cli, &ranks, f, &json, draws(top));
	if (top->cli->format.json)
		json_close(&json, '}');
	return r;
}

/* `rows` NULL: the ranks of the job. */
static int top_show(struct top *top, const json_t *rows)
{
	char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);
	int r;

	if (!f)
		cli_out_of_memory();
	if (top->has_printed && !draws(top) && !top->cli->format.json)
		(void)fputc('\n', f); /* between frames */
	r = rows ? top_print(top, f, rows) : top_print_job(top, f);
	if (fclose(f) == EOF)
		cli_out_of_memory();
	if (!r)
		r = draws(top) ? redraw_text(&top->redraw, text) : cli_write(text, size);
	top->has_printed = true;
	free(text);
	return r;
}

static void top_remember(struct top *top, const json_t *rows)
{
	json_t *row;
	char key[32];
	size_t i;

	json_decref(top->before);
	top->before = json_object();
	json_array_foreach(rows, i, row)
	{
		key_of(row, key);
		if (json_object_set(top->before, key, row) < 0)
			cli_out_of_memory();
	}
}

static int show_traffic(struct top *top)
{
	cleanup(json_decrefp) json_t *rows = NULL;
	int r = control_client_rows(top->cli, json_pack("{s:s, s:b}", "op", "rows", "ports", 1),
				    &rows);

	if (r)
		return r;
	ports_look(&top->ports, rows);
	r = top_show(top, rows);
	if (!r)
		top_remember(top, rows);
	return r;
}

/* Until a signal arrives. */
static int show_all(struct top *top, int signal_fd)
{
	struct pollfd fds[] = {
		{.fd = signal_fd, .events = POLLIN},
		{.fd = STDOUT_FILENO}, /* poll() always reports POLLERR */
	};
	int r;

	do
		r = top->job ? top_show(top, NULL) : show_traffic(top);
	while (!r && !top->once && poll(fds, 2, top->delay_ms) == 0);
	if (fds[1].revents & POLLERR) /* as a write would end it */
		(void)raise(SIGPIPE);
	return r;
}

static int run_top(struct top *top)
{
	int fd = signals_open(), r;

	if (fd < 0)
		return cli_error("cannot watch for signals: %s", strerror(-fd));
	r = show_all(top, fd);
	(void)close(fd);
	ports_deinit(&top->ports);
	json_decref(top->before);
	return r;
}

static const struct column *column_named(const struct cli *cli, const char *name)
{
	for (const struct column *c = trace_row_columns; c->name; c++)
		if (!strcasecmp(c->name, name))
			return c;
	cli_usage(cli, "there is no column '%s'", name);
}

static int top_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		{"delay", required_argument, NULL, OPTION_DELAY},
		{"once", no_argument, NULL, OPTION_ONCE},
		{"sort", required_argument, NULL, OPTION_SORT},
		{"sync", required_argument, NULL, OPTION_SYNC},
		{"peer", required_argument, NULL, OPTION_PEER},
		{"role", required_argument, NULL, OPTION_ROLE},
		{"transport", required_argument, NULL, OPTION_TRANSPORT},
		{"process", required_argument, NULL, OPTION_PROCESS},
		{"container", required_argument, NULL, OPTION_CONTAINER},
		{"cgroup", required_argument, NULL, OPTION_CGROUP},
		{"job", required_argument, NULL, OPTION_JOB},
		{"socket", required_argument, NULL, OPTION_SOCKET},
		OPTIONS_TABLE,
		OPTIONS_TRACER,
		{},
	};
	cleanup(table_deinit) struct table table = {};
	struct top top = {.cli = cli, .sort = column_named(cli, "RATE"), .delay_ms = 1000};
	int option;

	while ((option = cli_option(cli, argc, argv, LETTERS_TABLE, longs)) >= 0) {
		switch (option) {
		case OPTION_DELAY:
			top.delay_ms = cli_seconds(cli, "--delay", optarg);
			break;
		case OPTION_ONCE:
			top.once = true;
			break;
		case OPTION_SORT:
			top.sort = column_named(cli, optarg);
			break;
		case OPTION_SYNC:
			top.sync = optarg;
			break;
		case OPTION_PEER:
			top.peer = optarg;
			break;
		case OPTION_ROLE:
			if (strcmp(optarg, "payload") != 0 && strcmp(optarg, "control") != 0)
				cli_usage(cli, "--role takes payload or control, not '%s'", optarg);
			top.role = optarg;
			break;
		case OPTION_TRANSPORT:
			top.transport = optarg;
			break;
		case OPTION_PROCESS:
			top.process = optarg;
			break;
		case OPTION_CONTAINER:
			top.container = optarg;
			break;
		case OPTION_JOB:
			top.job = optarg;
			break;
		default:
			top.cgroup = optarg;
		}
	}
	if (argc - optind > 0)
		cli_usage(cli, "'%s' takes no arguments", cli->verb->name);
	/* A wrong -o is found before anything is asked. */
	table_init(&table, &cli->format, top.job ? job_ranks_columns : trace_row_columns);
	if (top.job && server_connect(cli))
		return EXIT_FAILED;
	return run_top(&top);
}

const struct verb verb_top = {
	.name = "top",
	.args = "",
	.summary = "Show the traffic of each sync, or the ranks of a job",
	.options = "     --delay SECONDS    between frames (1)\n"
		   "     --once             show one frame\n"
		   "     --sort COLUMN      sort rows by it, the greatest first (RATE)\n"
		   "     --sync SYNC        only this sync, or those with this prefix\n"
		   "     --peer NODE        only traffic with this node\n"
		   "     --role ROLE        only payload, or only control\n"
		   "     --transport WORD   only this transport: tcp, tls, gloo or nccl\n"
		   "     --process PROCESS  only this process, by its name or number\n"
		   "     --container ID     only this container, or those with this prefix\n"
		   "     --cgroup PATH      only this control group and those below it\n"
		   "     --job JOB          the ranks of this training job, as 'train status'\n"
		   "     --socket PATH      socket of the server, for --job\n" HELP_TABLE,
	.columns = trace_row_columns,
	.peer = PEER_TRACER,
	.run = top_run,
};

/*
 * weightctl trace messages: print the sizes of calls that send and receive the bytes of a sync.
 *
 * The calls are counted only while this runs. Rows that ended have their counts among the past ones.
 */
#include <inttypes.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libclient/weightctl/control/control_client.h"
#include "libclient/weightctl/control/sync_prefix.h"
#include "libclient/weightctl/output/clock.h"
#include "libclient/weightctl/output/json_field.h"
#include "libclient/weightctl/output/table.h"
#include "libclient/weightctl/signals.h"
#include "libclient/weightctl/verb.h"

#define SECONDS 10
#define SECONDS_MAX 3600
#define LOOK_MS 1000 /* interval of the checks for the end of the sync */
#define SIZES 32

enum option_of_messages {
	OPTION_SECONDS = OPTION_OWN,
};

/* Calls of one kind on the sockets of a row: all of them, or those of a size. */
struct line {
	const char *peer, *role, *process, *call;
	uint64_t size; /* 0: all */
	uint64_t count, bytes; /* UINT64_MAX: unknown */
	uint32_t pid; /* UINT32_MAX: likewise */
};

struct messages {
	const struct cli *cli;
	struct sync_prefix sync_names; /* names of all syncs that have rows */
	const char *sync; /* the sync of the calls, or the argument */
	uint64_t seconds;
	uint64_t began_ns;
	struct control_client control; /* weightd-trace counts calls while this connection is open */
	json_t *rows; /* as they were last, by their numbers */
	bool is_over;
};

#define LINE(member) offsetof(struct line, member)

static const struct column columns[] = {
	{"PEER", COLUMN_TEXT, LINE(peer), .help = "the other node", .shown = true, .cut = true,
	 .width = 8},
	{"ROLE", COLUMN_TEXT, LINE(role), .help = "payload or control", .shown = true},
	{"PROCESS", COLUMN_TEXT, LINE(process), .help = "process with the calls", .shown = true,
	 .cut = true, .width = 7},
	{"PID", COLUMN_INDEX, LINE(pid), .help = "number of that process"},
	{"CALL", COLUMN_TEXT, LINE(call), .help = "send or receive", .shown = true},
	{"SIZE", COLUMN_VERSION, LINE(size),
	 .help = "bytes of a call, or more but not twice as many; none: all", .shown = true},
	{"COUNT", COLUMN_U64, LINE(count), .help = "number of calls", .shown = true},
	{"BYTES", COLUMN_COUNTED, LINE(bytes), .help = "bytes of all of them", .shown = true},
	{},
};

static bool is_of_sync(const struct messages *m, const json_t *row)
{
	const char *sync = json_field_text(row, "sync");

	return sync && !strcmp(sync, m->sync);
}

static uint64_t began_ns(const json_t *row)
{
	return json_field_number(json_object_get(row, "messages"), "began_ns", 0);
}

/* Keeps the rows of the sync with calls counted since the start; returns the number of rows of the sync. */
static unsigned messages_keep(struct messages *m, const json_t *rows)
{
	unsigned n = 0;
	char key[32];
	json_t *row;
	size_t i;

	json_array_foreach(rows, i, row)
	{
		if (!is_of_sync(m, row))
			continue;
		n++;
		(void)snprintf(key, sizeof(key), "%" PRIu64, json_field_number(row, "row", 0));
		if (began_ns(row) >= m->began_ns && json_object_set(m->rows, key, row) < 0)
			cli_out_of_memory();
	}
	return n;
}

/* Present or past rows. 0, or EXIT_FAILED after printing why. */
static int trace_messages_look(struct messages *m, const char *op)
{
	cleanup(json_decrefp) json_t *rows = NULL;
	int r = control_client_rows(m->cli, json_pack("{s:s}", "op", op), &rows);

	if (!r && messages_keep(m, rows) == 0)
		m->is_over = true;
	return r;
}

/* Completes the name of a sync from a prefix. If no sync has it, weightd-trace reports that. */
static int find_name(struct messages *m)
{
	cleanup(json_decrefp) json_t *rows = NULL;
	const char *name, *sync;
	const json_t *row;
	size_t i;

	if (control_client_rows(m->cli, json_pack("{s:s}", "op", "rows"), &rows))
		return EXIT_FAILED;
	json_array_foreach(rows, i, row)
	{
		sync = json_field_text(row, "sync");
		if (sync)
			(void)sync_prefix_add(&m->sync_names, sync);
	}
	if (sync_prefix_find(&m->sync_names, &name))
		return EXIT_FAILED;
	if (name)
		m->sync = name;
	return 0;
}

static int trace_messages_begin(struct messages *m)
{
	cleanup(json_decrefp) json_t *rows = NULL;

	if (find_name(m))
		return EXIT_FAILED;
	m->began_ns = clock_now_ns();
	if (control_client_open(m->cli, &m->control))
		return EXIT_FAILED;
	return control_client_ask_rows(&m->control,
				       json_pack("{s:s, s:s, s:I, s:b}", "op", "messages", "sync",
						 m->sync, "seconds", (json_int_t)m->seconds, "all",
						 1),
				       &rows);
}

/* Until the time is over, a signal arrives or the sync has no more rows. */
static int wait_for_end(struct messages *m, int signal_fd)
{
	uint64_t end_ns = m->began_ns + m->seconds * 1000000000, now_ns = m->began_ns;
	struct pollfd p = {.fd = signal_fd, .events = POLLIN};
	int r = 0, ms;

	while (!r && !m->is_over && now_ns < end_ns) {
		ms = (int)((end_ns - now_ns) / 1000000) + 1;
		if (poll(&p, 1, ms < LOOK_MS ? ms : LOOK_MS) > 0)
			break;
		r = trace_messages_look(m, "rows");
		now_ns = clock_now_ns();
	}
	return r;
}

static void print_calls(struct table *table, const json_t *row, const char *key, const char *call)
{
	const json_t *calls = json_object_get(json_object_get(row, "messages"), key);
	const json_t *process = json_object_get(row, "process");
	const json_t *sizes = json_object_get(calls, "sizes");
	struct line line = {
		.peer = json_field_text(row, "peer"),
		.role = json_field_text(row, "role"),
		.process = json_field_text(process, "comm"),
		.call = call,
		.count = json_field_number(calls, "calls", 0),
		.bytes = json_field_number(calls, "bytes", UINT64_MAX),
		.pid = json_field_id(process, "pid"),
	};
	char size[16];

	if (!line.count)
		return;
	table_row(table, &line);
	line.bytes = UINT64_MAX;
	for (int i = 0; i < SIZES; i++) {
		line.size = UINT64_C(1) << i;
		(void)snprintf(size, sizeof(size), "%" PRIu64, line.size);
		line.count = json_field_number(sizes, size, 0);
		if (line.count)
			table_row(table, &line);
	}
}

static int trace_messages_print(const struct messages *m, struct table *table)
{
	struct json json = {.file = stdout};
	const char *key;
	json_t *row;
	int r;

	if (m->cli->format.json) {
		json_open(&json, NULL, '{');
		json_put_string(&json, "sync", m->sync);
	}
	table_begin(table, &json, "calls");
	json_object_foreach(m->rows, key, row)
	{
		print_calls(table, row, "sent", "send");
		print_calls(table, row, "received", "receive");
	}
	r = table_end(table);
	if (m->cli->format.json)
		json_close(&json, '}');
	return r;
}

static int messages_count(struct messages *m, struct table *table)
{
	int fd = signals_open(), r;

	if (fd < 0)
		return cli_error("cannot watch for signals: %s", strerror(-fd));
	r = trace_messages_begin(m);
	if (!r)
		r = wait_for_end(m, fd);
	if (!r)
		r = trace_messages_look(m, "past");
	if (!r)
		r = trace_messages_look(m, "rows");
	if (!r)
		r = trace_messages_print(m, table);
	(void)close(fd);
	return r;
}

static int trace_messages_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		{"seconds", required_argument, NULL, OPTION_SECONDS},
		OPTIONS_TABLE,
		OPTIONS_TRACER,
		{},
	};
	cleanup(table_deinit) struct table table = {};
	struct messages m = {.cli = cli, .seconds = SECONDS, .control.fd = -1};
	int r;

	while (cli_option(cli, argc, argv, LETTERS_TABLE, longs) >= 0)
		m.seconds = cli_number(cli, "--seconds", optarg, 10, 1, SECONDS_MAX);
	if (argc - optind != 1)
		cli_usage(cli, "'%s' takes the name of a sync", cli->verb->name);
	m.sync = argv[optind];
	sync_prefix_init(&m.sync_names, m.sync);
	table_init(&table, &cli->format, columns);
	m.rows = json_object();
	if (!m.rows)
		cli_out_of_memory();
	r = messages_count(&m, &table);
	control_client_deinit(&m.control);
	json_decref(m.rows);
	sync_prefix_deinit(&m.sync_names);
	return r;
}

const struct verb verb_trace_messages = {
	.name = "trace messages",
	.args = "SYNC",
	.summary = "Count the calls that send and receive bytes of a sync",
	.options = "     --seconds SECONDS  duration, or until a signal (10)\n" HELP_TABLE,
	.columns = columns,
	.peer = PEER_TRACER,
	.run = trace_messages_run,
};

/*
 * weightctl trace doctor: print which features of this kernel weightd-trace can use, and which it lacks.
 */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "libclient/weightctl/control/control_client.h"
#include "libclient/weightctl/control/sync.h"
#include "libclient/weightctl/output/escape.h"
#include "libclient/weightctl/output/json_field.h"
#include "libclient/weightctl/output/table.h"
#include "libclient/weightctl/verb.h"

struct meter {
	const char *name;
	const char *why; /* it is not BPF */
	const char *limits; /* limits of its counts by BPF */
	const char *blind; /* why it counts nothing */
};

struct hook {
	const char *name;
	const char *state;
	const char *why;
	const char *lost;
};

#define HOOK(member) offsetof(struct hook, member)

static const struct column columns[] = {
	{"HOOK", COLUMN_TEXT, HOOK(name), .help = "hook for a BPF program", .shown = true},
	{"STATE", COLUMN_TEXT, HOOK(state), .help = "on or off", .shown = true},
	{"WHY", COLUMN_TEXT, HOOK(why), .help = "reason if it is off; below the table, too"},
	{"LOST", COLUMN_TEXT, HOOK(lost), .help = "information missing without it; likewise"},
	{},
};

static struct hook hook_of(const json_t *row)
{
	return (struct hook){
		.name = json_field_text(row, "hook"),
		.state = json_field_bool(row, "on") ? "on" : "off",
		.why = json_field_text(row, "why"),
		.lost = json_field_text(row, "lost"),
	};
}

/* Files with the known functions of CUDA, NCCL and verbs. */
static void print_libraries(const json_t *rows)
{
	const json_t *row;
	size_t i;

	json_array_foreach(rows, i, row)
	{
		const char *path = json_field_text(row, "path"), *why = json_field_text(row, "why");
		uint64_t n = json_field_number(row, "processes", 0);

		if (!json_field_is_kind(row, "library"))
			continue;
		(void)fputs(why ? "Not probed: " : "Probed: ", stdout);
		escape_name(stdout, path ? path : "-");
		(void)printf(" (%" PRIu64 " process%s)\n", n, n == 1 ? "" : "es");
		if (why)
			sync_say(stdout, "  why", why);
	}
}

/* RDMA devices need neither BPF nor privileges. */
static void print_rdma(const json_t *rows)
{
	const json_t *row;
	size_t i;

	json_array_foreach(rows, i, row)
	{
		const char *what = json_field_text(row, "what"), *why = json_field_text(row, "why");

		if (json_field_is_kind(row, "rdma") && what && why)
			sync_say(stdout,
				 !strcmp(what, "ports") ? "No RDMA ports" : "No RDMA queue pairs",
				 why);
	}
}

static void put_rdma(const json_t *rows, struct json *json)
{
	const json_t *row;
	size_t i;

	json_open(json, "rdma", '[');
	json_array_foreach(rows, i, row)
	{
		if (!json_field_is_kind(row, "rdma"))
			continue;
		json_open(json, NULL, '{');
		json_put_string(json, "what", json_field_text(row, "what"));
		json_put_bool(json, "on", json_field_bool(row, "on"));
		json_put_string(json, "why", json_field_text(row, "why"));
		json_close(json, '}');
	}
	json_close(json, ']');
}

static void print_meter(const struct meter *meter)
{
	if (meter->blind)
		sync_say(stdout, "Counts nothing", meter->blind);
	else if (meter->why)
		(void)puts(
			"Counts by sock_diag: sockets of its own network namespace, sampled where they "
			"end.");
	else if (meter->limits)
		sync_say(stdout, "Counts by BPF, with limits", meter->limits);
	else if (meter->name)
		(void)puts("Counts by BPF: all sockets, every number exact.");
	if (meter->why)
		sync_say(stdout, "No BPF", meter->why);
}

static void print_sentences(const json_t *rows, const struct meter *meter)
{
	const char *before = NULL;
	const json_t *row;
	size_t i;

	(void)fputc('\n', stdout);
	json_array_foreach(rows, i, row)
	{
		const struct hook hook = hook_of(row);

		if (!json_field_is_kind(row, "hook") || !hook.why)
			continue;
		sync_say(stdout, hook.name,
			 before && !strcmp(before, hook.why) ? "likewise" : hook.why);
		before = hook.why;
		if (hook.lost)
			sync_say(stdout, "  lost", hook.lost);
	}
	print_rdma(rows);
	print_meter(meter);
	print_libraries(rows);
}

static void put_libraries(struct json *json, const json_t *rows)
{
	const json_t *row;
	size_t i;

	json_open(json, "libraries", '[');
	json_array_foreach(rows, i, row)
	{
		if (!json_field_is_kind(row, "library"))
			continue;
		json_open(json, NULL, '{');
		json_put_string(json, "path", json_field_text(row, "path"));
		json_put_string(json, "state", json_field_bool(row, "on") ? "on" : "off");
		json_put_string(json, "why", json_field_text(row, "why"));
		json_put_number(json, "functions", json_field_number(row, "functions", 0));
		json_put_number(json, "processes", json_field_number(row, "processes", 0));
		json_close(json, '}');
	}
	json_close(json, ']');
}

static int trace_doctor_print(const struct cli *cli, struct table *table, const json_t *rows)
{
	struct json json = {.file = stdout};
	struct meter meter = {};
	const json_t *row;
	size_t i;
	int r;

	json_array_foreach(rows, i, row)
	{
		if (!json_field_is_kind(row, "meter"))
			continue;
		meter.name = json_field_text(row, "meter");
		meter.why = json_field_text(row, "why");
		meter.limits = json_field_text(row, "limits");
		meter.blind = json_field_text(row, "blind");
	}
	if (cli->format.json) {
		json_open(&json, NULL, '{');
		json_put_string(&json, "meter", meter.name);
		json_put_string(&json, "why", meter.why);
		json_put_string(&json, "limits", meter.limits);
		json_put_string(&json, "blind", meter.blind);
	}
	table_begin(table, &json, "hooks");
	json_array_foreach(rows, i, row)
	{
		const struct hook hook = hook_of(row);

		if (json_field_is_kind(row, "hook"))
			table_row(table, &hook);
	}
	r = table_end(table);
	if (cli->format.json) {
		put_rdma(rows, &json);
		put_libraries(&json, rows);
		json_close(&json, '}');
	}
	if (!r && !cli->format.json && !cli->format.columns && !cli->format.noheadings)
		print_sentences(rows, &meter);
	return r;
}

static int trace_doctor_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {OPTIONS_TABLE, OPTIONS_TRACER, {}};

	(void)cli_option(cli, argc, argv, LETTERS_TABLE, longs);
	return control_client_show(cli, argc, json_pack("{s:s}", "op", "doctor"),
				   trace_doctor_print);
}

const struct verb verb_trace_doctor = {
	.name = "trace doctor",
	.args = "",
	.summary = "Show the features of this kernel for weightd-trace",
	.options = HELP_TABLE,
	.columns = columns,
	.peer = PEER_TRACER,
	.patience_s = 120, /* weightd-trace loads each of its programs to answer */
	.run = trace_doctor_run,
};

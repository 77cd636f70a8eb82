/*
 * weightctl doctor: check weightd and what it depends on, with the way out of each fault.
 *
 * The ways do not fit into the table, and follow below it.
 */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "libclient/weightctl/doctor/check.h"
#include "libclient/weightctl/output/escape.h"
#include "libclient/weightctl/output/table.h"
#include "libclient/weightctl/output/width.h"
#include "libclient/weightctl/verb.h"

#define EXIT_WARNED 3
#define LINE 80

#define CHECK(member) offsetof(struct check, member)

static const char *doctor_state(const void *row, bool json)
{
	(void)json;
	return check_state_name(((const struct check *)row)->state);
}

static const struct column columns[] = {
	{"CHECK", COLUMN_TEXT, CHECK(name), .help = "subject", .shown = true},
	{"STATE", COLUMN_WORD, .word = doctor_state, .help = "ok, note, warning or error",
	 .shown = true},
	{"FOUND", COLUMN_TEXT, CHECK(found), .help = "finding", .shown = true, .cut = true,
	 .width = 0.7},
	{"WAY", COLUMN_TEXT, CHECK(way), .help = "way out; below the table, too"},
	{},
};

/* Words of `s`, in lines that begin with two spaces and end before column LINE. */
static void print_paragraph(const char *s)
{
	size_t at = 0;

	while (*s) {
		size_t n = strcspn(s, " "), width = width_of(s, n);
		char *word = strndup(s, n);

		if (!word)
			cli_out_of_memory();
		if (at && at + 1 + width >= LINE)
			at = 0, (void)fputc('\n', stdout);
		(void)fputs(at ? " " : "  ", stdout);
		escape_text(stdout, word);
		free(word);
		at += width + (at ? 1 : 2);
		s += n;
		s += strspn(s, " ");
	}
	(void)fputc('\n', stdout);
}

static void print_ways(const struct checks *c)
{
	for (size_t i = 0; i < c->n; i++) {
		const struct check *check = &c->list[i];

		if (!check->way)
			continue;
		(void)printf("\n%s: ", check->name);
		escape_text(stdout, check->found);
		(void)fputc('\n', stdout);
		print_paragraph(check->way);
	}
}

static int doctor_print(const struct cli *cli, struct table *table, const struct checks *c)
{
	struct json json = {.file = stdout};
	int r;

	if (cli->format.json) {
		json_open(&json, NULL, '{');
		json_put_string(&json, "state", check_state_name(checks_worst(c)));
	}
	table_begin(table, &json, "checks");
	for (size_t i = 0; i < c->n; i++)
		table_row(table, &c->list[i]);
	r = table_end(table);
	if (cli->format.json)
		json_close(&json, '}');
	else if (!r && !cli->format.columns && !cli->format.noheadings)
		print_ways(c);
	return r;
}

static int doctor_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		{"trace-socket", required_argument, NULL, OPTION_TRACE_SOCKET},
		{"sync-socket", required_argument, NULL, OPTION_SYNC_SOCKET},
		OPTIONS_TABLE,
		OPTIONS_COMMON,
		{},
	};
	static const int statuses[] = {
		[CHECK_OK] = EXIT_SUCCESS,
		[CHECK_NOTE] = EXIT_SUCCESS,
		[CHECK_WARNING] = EXIT_WARNED,
		[CHECK_ERROR] = EXIT_FAILED,
	};
	cleanup(checks_deinit) struct checks checks = {};
	cleanup(table_deinit) struct table table = {};

	(void)cli_option(cli, argc, argv, LETTERS_TABLE, longs);
	if (argc - optind > 0)
		cli_usage(cli, "'doctor' takes no arguments");
	table_init(&table, &cli->format, columns);
	doctor_check_server(cli, &checks);
	doctor_check_services(cli, &checks);
	doctor_check_machine(&checks);
	if (doctor_print(cli, &table, &checks))
		return EXIT_FAILED;
	return statuses[checks_worst(&checks)];
}

const struct verb verb_doctor = {
	.name = "doctor",
	.args = "",
	.summary = "Check the server and this machine, with ways out of faults",
	.options = HELP_TABLE "     --sync-socket PATH socket of weightd-sync\n"
			      "     --trace-socket PATH\n"
			      "                        socket of weightd-trace\n",
	.columns = columns,
	.run = doctor_run,
};

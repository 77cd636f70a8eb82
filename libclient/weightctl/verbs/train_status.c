/*
 * weightctl train status: what each rank of a job does, and which one the others wait for
 */
#include <stdio.h>
#include <unistd.h>

#include "libclient/weightctl/server.h"
#include "libclient/weightctl/verb.h"
#include "libclient/weightctl/verbs/job_ranks.h"

static int print_status(const struct cli *cli, const struct job_ranks *ranks)
{
	struct json json = {.file = stdout};
	int r;

	if (cli->format.json)
		json_open(&json, NULL, '{');
	else if (!ranks->n_jobs && isatty(STDOUT_FILENO))
		(void)fputs("no job of yours trains now\n", stderr);
	r = job_ranks_print(cli, ranks, stdout, &json, false);
	if (cli->format.json)
		json_close(&json, '}');
	return r;
}

static int train_status(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {OPTIONS_TABLE, OPTIONS_COMMON, {}};
	cleanup(job_ranks_deinit) struct job_ranks ranks = {};
	cleanup(table_deinit) struct table table = {};

	(void)cli_option(cli, argc, argv, LETTERS_TABLE, longs);
	table_init(&table, &cli->format, job_ranks_columns); /* a wrong -o is found first */
	if (server_connect(cli))
		return EXIT_FAILED;
	if (job_ranks_fetch(cli, argv + optind, (size_t)(argc - optind), &ranks))
		return EXIT_FAILED;
	return print_status(cli, &ranks);
}

const struct verb verb_train_status = {
	.name = "train status",
	.args = "[JOB...]",
	.summary = "Show the ranks of jobs: steps, losses, and waits",
	.options = HELP_TABLE,
	.columns = job_ranks_columns,
	.run = train_status,
};

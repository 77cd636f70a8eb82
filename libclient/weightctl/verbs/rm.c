/*
 * weightctl rm: remove buffers, old versions of them, or jobs. Like rm(1): all that can be removed is.
 */
#include <errno.h>
#include <string.h>

#include "libclient/weightctl/absent.h"
#include "libclient/weightctl/cli.h"
#include "libclient/weightctl/server.h"
#include "libclient/weightctl/verb.h"

enum {
	OPTION_JOB = OPTION_OWN,
};

static bool is_job(struct cli *cli, const char *name)
{
	cleanup(cli_list_freep) struct weightd_list *list = NULL;
	const struct weightd_job_info *info;

	if (weightd_list_jobs(cli->w, &list) < 0)
		return false; /* the failure to find a buffer is reported */
	for (size_t i = 0; (info = weightd_list_job(list, i)); i++)
		if (!strcmp(info->name, name))
			return true;
	return false;
}

static int remove_job(struct cli *cli, const char *name)
{
	int r = weightd_job_remove(cli->w, name);

	return r < 0 ? cli_fail(cli, r) : 0;
}

/* Names of buffers have precedence. A device or a version makes it one. */
static int remove_target(struct cli *cli, const struct target *target)
{
	int r = weightd_drop(cli->w, target->name, cli->device, target->version);

	if (r == -ENOENT && !cli->device && !target->version && is_job(cli, target->name))
		return remove_job(cli, target->name);
	return r < 0 ? absent_buffer(cli, target->name, r) : 0;
}

static void check_jobs(const struct cli *cli, const struct target *targets, size_t n)
{
	if (cli->device)
		cli_usage(cli, "--job and --device exclude each other: jobs are in host memory");
	for (size_t i = 0; i < n; i++)
		if (targets[i].version)
			cli_usage(cli, "job '%s' has no versions; leave out the '@'",
				  targets[i].name);
}

static int rm_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		{"job", no_argument, NULL, OPTION_JOB},
		OPTIONS_DEVICE,
		OPTIONS_COMMON,
		{},
	};
	cleanup(cli_freep) struct target *targets = NULL;
	bool jobs = false;
	size_t n_targets;
	int status = 0;

	while (cli_option(cli, argc, argv, LETTERS_COMMON, longs) >= 0)
		jobs = true;
	targets = cli_targets(cli, argc, argv, &n_targets);
	if (jobs)
		check_jobs(cli, targets, n_targets);
	if (server_connect(cli))
		return EXIT_FAILED;
	for (size_t i = 0; i < n_targets; i++)
		if (jobs ? remove_job(cli, targets[i].name) : remove_target(cli, &targets[i]))
			status = EXIT_FAILED;
	return status;
}

const struct verb verb_rm = {
	.name = "rm",
	.args = "NAME[@VERSION]...",
	.summary = "Remove a buffer, one old version of it, or a job",
	.options = "     --job              remove a job, also if a buffer has its name\n" HELP_DEVICE,
	.run = rm_run,
};

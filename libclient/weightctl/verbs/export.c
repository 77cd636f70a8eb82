/*
 * weightctl export: keep a model as a directory.
 */
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "libclient/weightctl/holder.h"
#include "libclient/weightctl/signals.h"
#include "libclient/weightctl/verb.h"

enum {
	OPTION_HOLD = OPTION_OWN,
};

static int announce(const struct weightd_model_dir *dir)
{
	cleanup(cli_freep) char *line = NULL;

	if (asprintf(&line, "%s\n", weightd_model_dir_path(dir)) < 0)
		cli_out_of_memory();
	return cli_write(line, strlen(line));
}

static int hold(struct cli *cli, const char *const *specs, size_t n, const char *path)
{
	const struct weightd_model_dir_options options = {
		.size = sizeof(options),
		.path = path,
		.owner = cli->owner,
	};
	struct holder holder;
	int fd = signals_open(), r;

	if (fd < 0)
		return cli_error("cannot watch for signals: %s", strerror(-fd));
	(void)signal(SIGPIPE, SIG_IGN); /* else the directory would be left behind */
	r = holder_open(&holder, cli, specs, n, &options);
	if (r == 0) {
		r = announce(holder.dir);
		if (r == 0)
			holder_keep(&holder, fd);
		holder_close(&holder);
	}
	(void)close(fd);
	return r;
}

static int export_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		{"hold", no_argument, NULL, OPTION_HOLD},
		OPTIONS_OWNER,
		OPTIONS_COMMON,
		{},
	};
	bool is_held = false;
	size_t n;

	while (cli_option(cli, argc, argv, LETTERS_COMMON, longs) >= 0)
		is_held = true;
	if (argc - optind < 2)
		cli_usage(cli, "'export' wants a name and a directory");
	if (!is_held)
		cli_usage(cli,
			  "'export' wants --hold: the directory lasts as long as weightctl runs");
	n = (size_t)(argc - optind - 1);
	for (size_t i = 0; i < n; i++) {
		cleanup(cli_freep) char *copy = strdup(argv[optind + (int)i]);

		if (!copy)
			cli_out_of_memory();
		(void)cli_target(cli, copy);
	}
	return hold(cli, (const char *const *)argv + optind, n, argv[argc - 1]);
}

const struct verb verb_export = {
	.name = "export",
	.args = "NAME[@VERSION]... DIR --hold",
	.summary = "Keep a model as a directory, until a signal ends weightctl",
	.options =
		"     --hold             stay, and keep the directory until SIGTERM or SIGINT\n" HELP_OWNER,
	.run = export_run,
};

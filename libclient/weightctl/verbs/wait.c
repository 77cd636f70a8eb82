/*
 * weightctl wait: until a version is published.
 */
#include <stdint.h>

#include "libclient/weightctl/cli.h"
#include "libclient/weightctl/server.h"
#include "libclient/weightctl/verb.h"

enum {
	OPTION_VERSION = OPTION_OWN,
};

static int wait_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		{"version", required_argument, NULL, OPTION_VERSION},
		{"timeout", required_argument, NULL, 't'},
		OPTIONS_DEVICE,
		OPTIONS_JSON,
		OPTIONS_COMMON,
		{},
	};
	struct target target;
	uint64_t version = 0, found;
	int option, timeout = -1, r;

	while ((option = cli_option(cli, argc, argv, LETTERS_JSON "t:", longs)) >= 0) {
		if (option == OPTION_VERSION)
			version = cli_number(cli, "--version", optarg, 10, 1, UINT64_MAX);
		else
			timeout = cli_seconds(cli, "--timeout", optarg);
	}
	if (argc - optind != 1)
		cli_usage(cli, "'wait' wants one name");
	target = cli_target(cli, argv[optind]);
	if (target.version && version)
		cli_usage(cli, "a version is given by NAME@VERSION or by --version, not by both");
	if (server_connect(cli))
		return EXIT_FAILED;
	r = weightd_wait(cli->w, target.name, cli->device, target.version | version, timeout,
			 &found);
	return r < 0 ? cli_fail(cli, r) : server_print_version(cli, target.name, found);
}

const struct verb verb_wait = {
	.name = "wait",
	.args = "NAME[@VERSION]",
	.summary = "Wait until a version, or a later one, is published",
	.options = "     --version N        the same as NAME@N\n"
		   " -t, --timeout SECONDS  give up after that time, with exit code 1\n" HELP_JSON
			   HELP_DEVICE,
	.run = wait_run,
};

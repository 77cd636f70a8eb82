/*
 * weightctl wait: until a version is published.
 */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "libclient/weightctl/cli.h"
#include "libclient/weightctl/column.h"
#include "libclient/weightctl/verb.h"

enum {
	OPTION_VERSION = OPTION_OWN,
};

struct published {
	const char *name;
	const char *device;
	uint64_t version;
};

static const struct column columns[] = {
	COLUMN("NAME", COLUMN_TEXT, offsetof(struct published, name)),
	COLUMN("DEVICE", COLUMN_TEXT, offsetof(struct published, device)),
	COLUMN("VERSION", COLUMN_U64, offsetof(struct published, version)),
	{},
};

static int timeout_ms(const struct cli *cli, const char *arg)
{
	char *end;
	double s = strtod(arg, &end);

	if (end == arg || *end || !(s >= 0) || s > INT_MAX / 1000)
		cli_usage(cli, "--timeout wants seconds from 0 to %d, not '%s'", INT_MAX / 1000,
			  arg);
	return (int)ceil(s * 1000);
}

static int run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		{"version", required_argument, NULL, OPTION_VERSION},
		{"timeout", required_argument, NULL, 't'},
		OPTIONS_DEVICE,
		OPTIONS_JSON,
		OPTIONS_COMMON,
		{},
	};
	struct published published = {.device = "host"};
	struct target target;
	uint64_t version = 0;
	int option, timeout = -1, r;

	while ((option = cli_option(cli, argc, argv, LETTERS_JSON "t:", longs)) >= 0) {
		if (option == OPTION_VERSION)
			version = cli_number(cli, "--version", optarg, 10, 1, UINT64_MAX);
		else
			timeout = timeout_ms(cli, optarg);
	}
	if (argc - optind != 1)
		cli_usage(cli, "'wait' wants one name");
	target = cli_target(cli, argv[optind]);
	if (target.version && version)
		cli_usage(cli, "a version is given by NAME@VERSION or by --version, not by both");
	if (cli_connect(cli))
		return EXIT_FAILED;
	published.name = target.name;
	published.device = cli_device(cli);
	r = weightd_wait(cli->w, target.name, cli->device, target.version | version, timeout,
			 &published.version);
	if (r < 0)
		return cli_fail(cli, r);
	if (cli->json)
		column_json_object(columns, &published);
	else
		(void)printf("%s@%" PRIu64 " on %s\n", published.name, published.version,
			     published.device);
	return 0;
}

const struct verb verb_wait = {
	.name = "wait",
	.args = "NAME[@VERSION]",
	.summary = "Wait until a version, or a later one, is published",
	.options = "     --version N        the same as NAME@N\n"
		   " -t, --timeout SECONDS  give up after that time, with exit code 1\n" HELP_JSON
			   HELP_DEVICE,
	.run = run,
};

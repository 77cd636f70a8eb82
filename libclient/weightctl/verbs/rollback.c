/*
 * weightctl rollback: an old version that is still kept becomes the current one again.
 */
#include <stdint.h>

#include "libclient/weightctl/absent.h"
#include "libclient/weightctl/cli.h"
#include "libclient/weightctl/server.h"
#include "libclient/weightctl/verb.h"

/* NAME@VERSION or NAME VERSION; without either the library's choice. */
static struct target rollback_parse(const struct cli *cli, int argc, char *argv[])
{
	struct target target;

	if (argc - optind < 1 || argc - optind > 2)
		cli_usage(cli, "'rollback' wants one name, and a version perhaps");
	target = cli_target(cli, argv[optind]);
	if (argc - optind == 1)
		return target;
	if (target.version)
		cli_usage(cli, "a version is given by NAME@VERSION or by NAME VERSION, not by both");
	target.version = cli_number(cli, "VERSION", argv[optind + 1], 10, 1, UINT64_MAX);
	return target;
}

static int rollback_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {OPTIONS_DEVICE, OPTIONS_JSON, OPTIONS_COMMON, {}};
	struct target target;
	uint64_t current;
	int r;

	(void)cli_option(cli, argc, argv, LETTERS_JSON, longs);
	target = rollback_parse(cli, argc, argv);
	if (server_connect(cli))
		return EXIT_FAILED;
	r = weightd_rollback(cli->w, target.name, cli->device, target.version, &current);
	return r < 0 ? absent_buffer(cli, target.name, r)
		     : server_print_version(cli, target.name, current);
}

const struct verb verb_rollback = {
	.name = "rollback",
	.args = "NAME[@VERSION] | NAME VERSION",
	.summary = "Make an old version current again, or the previous one",
	.options = HELP_JSON HELP_DEVICE,
	.run = rollback_run,
};

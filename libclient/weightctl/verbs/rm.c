/*
 * weightctl rm: remove buffers, or old versions of them. Like rm(1): all that can be removed is.
 */
#include "libclient/weightctl/absent.h"
#include "libclient/weightctl/cli.h"
#include "libclient/weightctl/server.h"
#include "libclient/weightctl/verb.h"

static int rm_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {OPTIONS_DEVICE, OPTIONS_COMMON, {}};
	cleanup(cli_freep) struct target *targets = NULL;
	size_t n_targets;
	int status = 0, r;

	(void)cli_option(cli, argc, argv, LETTERS_COMMON, longs);
	targets = cli_targets(cli, argc, argv, &n_targets);
	if (server_connect(cli))
		return EXIT_FAILED;
	for (size_t i = 0; i < n_targets; i++) {
		r = weightd_drop(cli->w, targets[i].name, cli->device, targets[i].version);
		if (r < 0)
			status = absent_buffer(cli, targets[i].name, r);
	}
	return status;
}

const struct verb verb_rm = {
	.name = "rm",
	.args = "NAME[@VERSION]...",
	.summary = "Remove a buffer, or one old version of it",
	.options = HELP_DEVICE,
	.run = rm_run,
};

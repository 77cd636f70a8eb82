/*
 * weightctl chmod: change permissions of buffers. Like chmod(1), it changes all that it can.
 */
#include "libclient/weightctl/absent.h"
#include "libclient/weightctl/cli.h"
#include "libclient/weightctl/server.h"
#include "libclient/weightctl/verb.h"

static int chmod_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {OPTIONS_DEVICE, OPTIONS_COMMON, {}};
	int status = 0, r;
	uint32_t mode;

	(void)cli_option(cli, argc, argv, LETTERS_COMMON, longs);
	if (argc - optind < 2)
		cli_usage(cli, "'chmod' wants a mode and at least one name");
	mode = (uint32_t)cli_number(cli, "MODE", argv[optind], 8, 0, 0777);
	for (int i = optind + 1; i < argc; i++)
		(void)cli_name(cli, argv[i]);
	if (server_connect(cli))
		return EXIT_FAILED;
	for (int i = optind + 1; i < argc; i++) {
		r = weightd_set_access(cli->w, argv[i], cli->device, mode, -1, -1);
		if (r < 0)
			status = absent_buffer(cli, argv[i], r);
	}
	return status;
}

const struct verb verb_chmod = {
	.name = "chmod",
	.args = "MODE NAME...",
	.summary = "Change permissions to attach (r) and write (w); MODE is octal",
	.options = HELP_DEVICE,
	.run = chmod_run,
};

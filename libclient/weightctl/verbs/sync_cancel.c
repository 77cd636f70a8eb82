/*
 * weightctl sync cancel: ends a push before its commit; every node keeps what it had.
 */
#include <stdio.h>

#include "libclient/weightctl/control/control_client.h"
#include "libclient/weightctl/control/sync.h"
#include "libclient/weightctl/verb.h"

static int sync_cancel_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {OPTIONS_AGENT, {}};
	cleanup(json_decrefp) json_t *rows = NULL;
	char sync[SYNC_ID_MAX];

	(void)cli_option(cli, argc, argv, LETTERS_COMMON, longs);
	if (argc - optind != 1)
		cli_usage(cli, "'%s' wants one sync", cli->verb->name);
	if (sync_find(cli, argv[optind], sync))
		return EXIT_FAILED;
	return control_client_rows(cli, json_pack("{s:s, s:s}", "op", "cancel", "sync", sync),
				   &rows);
}

const struct verb verb_sync_cancel = {
	.name = "sync cancel",
	.args = "SYNC",
	.summary = "Cancel a sync; every node keeps its version",
	.peer = PEER_AGENT,
	.run = sync_cancel_run,
};

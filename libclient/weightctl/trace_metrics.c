/*
 * weightctl trace metrics: what weightd-trace counted, as OpenMetrics text.
 */
#include "libclient/weightctl/agent.h"
#include "libclient/weightctl/openmetrics.h"
#include "libclient/weightctl/verb.h"

static int run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		{"output", required_argument, NULL, 'O'},
		OPTIONS_TRACER,
		{},
	};
	cleanup(agent_decrefp) json_t *rows = NULL;
	const char *path = NULL;

	while (cli_option(cli, argc, argv, LETTERS_COMMON, longs) >= 0)
		path = optarg;
	if (argc - optind > 0)
		cli_usage(cli, "'%s' takes no arguments", cli->verb->name);
	if (agent_rows(cli, json_pack("{s:s}", "op", "metrics"), &rows))
		return EXIT_FAILED;
	return openmetrics_write(rows, path);
}

const struct verb verb_trace_metrics = {
	.name = "trace metrics",
	.args = "",
	.summary = "Write what weightd-trace counted, as OpenMetrics",
	.options = "     --output FILE      replace this file, whole, instead of printing\n",
	.peer = PEER_TRACER,
	.run = run,
};

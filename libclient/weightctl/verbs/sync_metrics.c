/*
 * weightctl sync metrics: what the agent counted, as OpenMetrics text.
 */
#include "libclient/weightctl/verb.h"
#include "libclient/weightctl/verbs/openmetrics.h"

static int sync_metrics_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		{"output", required_argument, NULL, 'O'},
		OPTIONS_AGENT,
		{},
	};

	return openmetrics_run(cli, argc, argv, longs);
}

const struct verb verb_sync_metrics = {
	.name = "sync metrics",
	.args = "",
	.summary = "Print the counters of this node, as OpenMetrics",
	.options = "     --output FILE      replace this file, whole, instead of printing\n",
	.peer = PEER_AGENT,
	.run = sync_metrics_run,
};

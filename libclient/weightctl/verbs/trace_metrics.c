/*
 * weightctl trace metrics: what weightd-trace counted, as OpenMetrics text.
 */
#include "libclient/weightctl/verb.h"
#include "libclient/weightctl/verbs/openmetrics.h"

static int trace_metrics_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		{"output", required_argument, NULL, 'O'},
		OPTIONS_TRACER,
		{},
	};

	return openmetrics_run(cli, argc, argv, longs);
}

const struct verb verb_trace_metrics = {
	.name = "trace metrics",
	.args = "",
	.summary = "Print the counters of weightd-trace, as OpenMetrics",
	.options = "     --output FILE      replace this file, whole, instead of printing\n",
	.peer = PEER_TRACER,
	.run = trace_metrics_run,
};

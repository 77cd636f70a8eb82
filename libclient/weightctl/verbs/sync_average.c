/*
 * weightctl sync average: the mean of what the nodes of a group have, at every one of them.
 */
#include <stddef.h>

#include "libclient/weightctl/verb.h"
#include "libclient/weightctl/verbs/sync_push.h"

static int sync_average_run(struct cli *cli, int argc, char *argv[])
{
	static const struct pushing average = {.what = "average", .op = "average", .makes = true};

	return pushing_run(cli, argc, argv, &average);
}

const struct verb verb_sync_average = {
	.name = "sync average",
	.args = "BUFFER",
	.summary = "Average the versions of all nodes of a group into a new one",
	.options = "     --group GROUP      the group; the only one it fits into if not given\n"
		   "     --policy POLICY    required nodes: all, quorum or each (the group's)\n"
		   "     --max-rate BYTES   a second out of each node at most, such as 500M or "
		   "1G\n"
		   "     --dry-run          link all nodes, print what would be sent, and undo "
		   "it\n"
		   "     --no-wait          print the name of the sync, and do not wait for its "
		   "end\n"
		   "     --queue            wait for the end of syncs in progress with the "
		   "buffer\n"
		   " -q, --quiet            no progress and no closing line\n" HELP_JSON,
	.peer = PEER_AGENT,
	.run = sync_average_run,
};

/*
 * What asks the agent of this node for a version at every node of a group, and waits for its end
 */
#pragma once

#include "libclient/weightctl/cli.h"

struct pushing {
	const char *what; /* "push", in sentences */
	const char *op; /* of the request */
	const char *dry_op; /* the same, only planned; NULL: the request says "dry" */
	bool makes; /* a version that is not there before, so that none can be named */
};

/* As a verb runs; it has the options of sync push. */
int sync_push_run(struct cli *cli, int argc, char *argv[], const struct pushing *kind);

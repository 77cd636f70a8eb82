/*
 * Operations that ask the agent of this node for a version at every node of a group, and wait for its end
 */
#pragma once

#include <jansson.h>

#include "libclient/weightctl/cli.h"

struct pushing {
	const char *what; /* "push", in sentences */
	const char *op; /* operation of the request */
	const char *dry_op; /* the same as a dry run; NULL: the request has "dry" */
	bool makes; /* the result is new: no version can be named, no node is left behind */
	const char *made; /* name of the result in sentences; NULL: the mean of what nodes have */
};

struct push_options {
	const char *group; /* NULL: the only one that the buffer belongs to */
	const char *policy; /* NULL: that of the group */
	uint64_t max_rate; /* 0: none */
	bool no_wait;
	bool wait_all; /* also wait for slow nodes */
	bool queue; /* behind what is under way with the buffer */
	bool is_dry;
	bool quiet;
};

/* Asks for it, and waits for its end. `more` are fields of the request, and stolen; NULL: none. */
int sync_push_ask(const struct cli *cli, const struct pushing *kind, const struct target *target,
		  const struct push_options *options, json_t *more);

/* As a verb runs; it has the options of sync push. */
int pushing_run(struct cli *cli, int argc, char *argv[], const struct pushing *kind);

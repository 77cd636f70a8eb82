/*
 * load from another node: weightd://NODE/NAME[@TERM.NUMBER], by the agent of this node
 */
#pragma once

#include <stdbool.h>

#include "libclient/weightctl/cli.h"

struct load_node_options {
	bool is_dry;
	bool quiet;
	unsigned timeout_ms; /* 0: none */
};

/* True for a path that names a node. */
bool load_node_is(const char *path);
/* Ends the program: this option of `load`, by its long name, has no meaning for such a path. */
_Noreturn void load_node_refuse_option(const struct cli *cli, const char *option);
/* Pulls the version that `path` names into the buffer `name`. Returns the exit status. */
int load_node(const struct cli *cli, const char *name, const char *path,
	      const struct load_node_options *options);

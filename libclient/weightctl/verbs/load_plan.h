/*
 * The plan of a load in the output of load --dry-run
 */
#pragma once

#include "libclient/weightctl/cli.h"

/*
 * Plans a load into the buffer `name` and prints that. Asks no server. The exit status of the program, after printing why
 * if it failed.
 */
int load_plan_print(struct cli *cli, const char *name, const char *const *paths, size_t n_paths,
		    const struct weightd_load_options *options);

/*
 * The keeper for any program.
 *
 *	keep [--store-max N] [--watchdog-ms N] PROGRAM ARGS...
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#include "server/restart/keeper.h"

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{"store-max", required_argument, NULL, 's'},
		{"watchdog-ms", required_argument, NULL, 'w'},
		{0},
	};
	struct keeper_options keeper = {.store_max = KEEPER_STORE_MAX};
	int c;

	while ((c = getopt_long(argc, argv, "+", options, NULL)) != -1) {
		if (c == '?')
			return 2;
		*(c == 's' ? &keeper.store_max : &keeper.watchdog_ms) = (unsigned)strtoul(optarg,
											  NULL, 10);
	}
	if (optind == argc) {
		fprintf(stderr, "keep: which program?\n");
		return 2;
	}
	keeper.program = argv[optind];
	return keeper_run(argv + optind, &keeper);
}

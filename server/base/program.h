/*
 * Programs
 *
 * What the mains of weightd and weightd-sync have in common: a command line of options alone, and what is
 * asked of the system before they serve.
 */
#pragma once

#include <getopt.h>
#include <stddef.h>

#define EXIT_USAGE 2

enum program_option {
	PROGRAM_VERSION = 256,
	PROGRAM_HELP,
	PROGRAM_OWN, /* codes of a program's own options begin here */
};

struct program {
	const char *name;
	const char *usage;
	const struct option *options; /* with --version and --help */
};

/*
 * Returns the code of the next option, and its place in the table in `ret_index`; -1 at the end.
 * Exits for --version and --help, and logs and exits where the command line is wrong.
 */
int program_next_option(const struct program *p, int argc, char **argv, int *ret_index);

/* The path of this program's file; -ENAMETOOLONG if `size` is too small for it. */
int program_file(char *ret, size_t size);

/* To as many as we are allowed: what a daemon holds takes some each. */
void program_raise_descriptor_limit(void);

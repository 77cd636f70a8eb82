#include "server/base/program.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "ipc/base/release.h"
#include "server/base/log.h"

int program_next_option(const struct program *p, int argc, char **argv, int *ret_index)
{
	int code = getopt_long(argc, argv, "", p->options, ret_index);
	char file[PATH_MAX];

	if (code == PROGRAM_VERSION) {
		printf("%s %s (%s)\n", p->name, RELEASE,
		       program_file(file, sizeof(file)) < 0 ? "file unknown" : file);
		exit(EXIT_SUCCESS);
	}
	if (code == PROGRAM_HELP) {
		fputs(p->usage, stdout);
		exit(EXIT_SUCCESS);
	}
	if (code == '?') { /* getopt has printed the error */
		fprintf(stderr, "Try '%s --help'.\n", p->name);
		exit(EXIT_USAGE);
	}
	if (code == -1 && optind < argc) {
		fprintf(stderr,
			"%s: unexpected argument '%s': only options are accepted; see %s --help\n",
			p->name, argv[optind], p->name);
		exit(EXIT_USAGE);
	}
	return code;
}

int program_file(char *ret, size_t size)
{
	ssize_t n = readlink("/proc/self/exe", ret, size);

	if (n < 0)
		return -errno;
	if ((size_t)n == size)
		return -ENAMETOOLONG;
	ret[n] = '\0';
	return 0;
}

void program_raise_descriptor_limit(void)
{
	int r = fd_raise_limit();

	if (r < 0)
		log_warning("cannot raise the limit on descriptors: %s", strerror(-r));
}

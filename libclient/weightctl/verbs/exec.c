/*
 * weightctl exec: run a program on the path of a model.
 *
 * weightctl becomes the program, so that exit status, signals, terminal and process group are the program's own. Another
 * process holds the versions.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libclient/weightctl/holder.h"
#include "libclient/weightctl/program.h"
#include "libclient/weightctl/verb.h"
#include "libclient/weightctl/verbs/exec_holder.h"

#define VARIABLE "WEIGHTD_MODEL"
#define MARK "{}"
#define FIRST_FD 900
#define EXIT_NOT_STARTED 125 /* as of env(1) and timeout(1) */

enum {
	OPTION_INHERIT = OPTION_OWN,
};

/* A copy of `text` with the path in the place of each mark. */
static char *with_path(const char *text, const char *path)
{
	char *copy;
	size_t size;
	FILE *f = open_memstream(&copy, &size);

	if (!f)
		cli_out_of_memory();
	for (const char *mark; (mark = strstr(text, MARK)); text = mark + strlen(MARK))
		(void)fprintf(f, "%.*s%s", (int)(mark - text), text, path);
	(void)fputs(text, f);
	if (fclose(f) != 0)
		cli_out_of_memory();
	return copy;
}

/* The first of `n` numbers that are free in this process. */
static int free_numbers(size_t n)
{
	int first = FIRST_FD;

	for (int fd = first; fd < first + (int)n; fd++)
		if (fcntl(fd, F_GETFD) >= 0)
			first = fd + 1;
	return first;
}

/* Without close-on-exec. */
static int inherit_weights(const struct exec_holder *h, int first)
{
	for (size_t i = 0; i < h->n; i++)
		if (dup2(h->weights[i], first + (int)i) < 0)
			return cli_error(
				"the program cannot have descriptor %d: %s; raise the limit (ulimit -n)",
				first + (int)i, strerror(errno == EBADF ? EMFILE : errno));
	return 0;
}

/* The program opens links as this process does: with the same user, group, capabilities and namespaces. */
static int check_links(const struct exec_holder *h, bool inherit)
{
	for (size_t i = 0; i < h->n; i++) {
		const struct exec_link *link = &h->links[i];
		int fd = open(link->path, O_RDONLY | O_CLOEXEC), error = errno;
		struct stat st;
		bool same = fd >= 0 && fstat(fd, &st) == 0 && st.st_dev == link->dev &&
			    st.st_ino == link->ino;

		if (fd >= 0)
			(void)close(fd);
		if (same)
			continue;
		if (fd < 0 && error == EACCES)
			return cli_error(
				"'%s' cannot be opened (%s): root or the user of weightd has changed the mode of the "
				"memory, or a security module forbids it; load the model again",
				link->path, strerror(error));
		return cli_error(
			"'%s' does not lead to the weights in process %d (%s): /proc is not mounted, hides that process, "
			"or shows another PID namespace%s",
			link->path, (int)h->pid, fd < 0 ? strerror(error) : "another file",
			!holder_has_proc()
				? "; mount it (mount -t proc proc /proc), or write the version to a "
				  "folder (weightctl save)"
			: inherit ? ""
				  : "; --inherit works without, for a program of one process");
	}
	return 0;
}

/* Returns only after a failure. */
static int run_with(struct exec_holder *h, const char *program, char *argv[], int first)
{
	if (first && inherit_weights(h, first))
		return EXIT_NOT_STARTED;
	if (check_links(h, first))
		return EXIT_NOT_STARTED;
	if (setenv(VARIABLE, h->path, 1) < 0)
		cli_out_of_memory();
	for (char **arg = argv + 1; *arg; arg++)
		*arg = with_path(*arg, h->path);
	return program_run(program, argv);
}

static int find_and_run(struct cli *cli, char *specs[], size_t n, char *argv[], bool inherit)
{
	const int first = inherit ? free_numbers(n) : 0;
	cleanup(cli_freep) char *program = NULL;
	struct exec_holder holder;
	int r = program_find(argv[0], &program);

	if (r)
		return r;
	r = exec_holder_start(&holder, cli, (const char *const *)specs, n, first)
		    ? EXIT_NOT_STARTED
		    : run_with(&holder, program, argv, first);
	exec_holder_end(&holder);
	return r;
}

/* Ends the program for a name that is none. cli_target() cuts its argument. */
static void check_specs(const struct cli *cli, char *specs[], size_t n)
{
	for (size_t i = 0; i < n; i++) {
		cleanup(cli_freep) char *copy = strdup(specs[i]);

		if (!copy)
			cli_out_of_memory();
		(void)cli_target(cli, copy);
	}
}

static int exec_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		{"inherit", no_argument, NULL, OPTION_INHERIT},
		OPTIONS_OWNER,
		OPTIONS_COMMON,
		{},
	};
	bool inherit = false;
	int n = 1;

	/* getopt moves names to behind "--". */
	while (n < argc && strcmp(argv[n], "--") != 0)
		n++;
	if (n < argc)
		argv[n] = NULL;
	while (cli_option(cli, n, argv, LETTERS_COMMON, longs) >= 0)
		inherit = true;
	if (n == optind || n + 1 >= argc)
		cli_usage(cli, "'exec' wants a name, '--' and a program");
	check_specs(cli, argv + optind, (size_t)(n - optind));
	return find_and_run(cli, argv + optind, (size_t)(n - optind), argv + n + 1, inherit);
}

const struct verb verb_exec = {
	.name = "exec",
	.args = "NAME[@VERSION]... -- PROGRAM [ARGUMENT...]",
	.summary = "Run a program that loads a model by its path",
	.options = "     --inherit          pass descriptors to the program: for one process, where\n"
		   "                        /proc does not lead to the holder\n" HELP_OWNER
		   " {} in an argument, and $" VARIABLE ", are the path of a directory\n",
	.run = exec_run,
};

/*
 * A program is looked at before anything is prepared for it. A file that is replaced after that only fails later, because
 * the kernel decides anew.
 */
#include "libclient/weightctl/program.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "libclient/weightctl/output/cli_error.h"

#define SCRIPT_LINE 256 /* bytes of a script that the kernel reads */
#define INTERPRETERS_MAX 5 /* of interpreters that are scripts themselves */
#define USUAL_PATH "/usr/local/bin:/usr/bin:/bin"

/* -errno of running the file. */
static int check_executable(const char *path)
{
	struct stat st;

	if (stat(path, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -EACCES;
	return faccessat(AT_FDCWD, path, X_OK, AT_EACCESS) < 0 ? -errno : 0;
}

static int search_path(const char *name, char **ret_path)
{
	const char *path = getenv("PATH");
	int worst = -ENOENT;

	for (path = path ? path : USUAL_PATH;; path++) {
		size_t n = strcspn(path, ":");
		char *candidate;
		int r;

		if (asprintf(&candidate, "%.*s%s%s", (int)n, path, n ? "/" : "", name) < 0)
			cli_out_of_memory();
		r = check_executable(candidate);
		if (r == 0) {
			*ret_path = candidate;
			return 0;
		}
		/* A folder that cannot be entered has no program. */
		if (r == -EACCES && access(candidate, F_OK) == 0)
			worst = r;
		free(candidate);
		path += n;
		if (!*path)
			return worst;
	}
}

/* Copies the interpreter that the first line of a script names. False: it is no script, or cannot be read. */
static bool find_interpreter(const char *path, char ret[SCRIPT_LINE])
{
	char line[SCRIPT_LINE] = "";
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	ssize_t n = fd < 0 ? -1 : read(fd, line, sizeof(line) - 1);
	char *start = line + 2;

	if (fd >= 0)
		(void)close(fd);
	if (n < 2 || strncmp(line, "#!", 2) != 0)
		return false;
	start += strspn(start, " \t");
	start[strcspn(start, " \t\n")] = '\0';
	(void)strcpy(ret, start);
	return *start;
}

static int refuse(const char *path, const char *why)
{
	(void)cli_error(
		"'%s' %s, and then cannot read the weights of this user's holder; run it without weightctl exec",
		path, why);
	return EXIT_NOT_EXECUTABLE;
}

static int check_privileges(const char *path)
{
	struct stat st;

	if (stat(path, &st) < 0)
		return 0; /* running it fails */
	if (st.st_mode & S_ISUID)
		return refuse(path, "changes its user (set-user-ID)");
	if ((st.st_mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP))
		return refuse(path, "changes its group (set-group-ID)");
	if (getxattr(path, "security.capability", NULL, 0) > 0)
		return refuse(path, "gets capabilities from its file");
	return 0;
}

static int check_all(const char *path)
{
	char interpreter[SCRIPT_LINE], script[SCRIPT_LINE];
	int r = check_privileges(path);

	for (int i = 0; i < INTERPRETERS_MAX && r == 0; i++) {
		if (!find_interpreter(i ? strcpy(script, interpreter) : path, interpreter))
			return 0;
		if (check_executable(interpreter) < 0) {
			(void)cli_error("'%s' is a script for '%s', which cannot be run: %s",
					i ? script : path, interpreter,
					strerror(-check_executable(interpreter)));
			return EXIT_NOT_FOUND;
		}
		r = check_privileges(interpreter);
	}
	return r;
}

int program_refuse(const char *name, int r)
{
	if (r == -ENOENT || r == -ENOTDIR) {
		(void)cli_error(strchr(name, '/') ? "there is no program '%s'"
						  : "there is no program '%s' in $PATH",
				name);
		return EXIT_NOT_FOUND;
	}
	(void)cli_error("'%s' cannot be run: %s", name,
			r == -ENOEXEC ? "it is neither a program of this machine nor a script with #!"
				      : strerror(-r));
	return EXIT_NOT_EXECUTABLE;
}

int program_search(const char *name, char **ret_path)
{
	char *path;
	int r;

	if (!*name)
		return program_refuse(name, -ENOENT);
	if (!strchr(name, '/')) {
		r = search_path(name, ret_path);
		return r < 0 ? program_refuse(name, r) : 0;
	}
	r = check_executable(name);
	if (r < 0)
		return program_refuse(name, r);
	path = strdup(name);
	if (!path)
		cli_out_of_memory();
	*ret_path = path;
	return 0;
}

int program_find(const char *name, char **ret_path)
{
	cleanup(cli_freep) char *path = NULL;
	int r = program_search(name, &path);

	if (r == 0)
		r = check_all(path);
	if (r == 0) {
		*ret_path = path;
		path = NULL;
	}
	return r;
}

int program_run(const char *path, char *argv[])
{
	(void)execv(path, argv);
	return program_refuse(path, -errno);
}

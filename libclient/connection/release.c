#include "libclient/connection/release.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/quote.h"
#include "weightd.h"

#define STRING(x) #x
#define RELEASE(major, minor, patch) STRING(major) "." STRING(minor) "." STRING(patch)

static pthread_once_t library_once = PTHREAD_ONCE_INIT;
static char library[PATH_MAX]; /* written once */

const char *weightd_release(void)
{
	return RELEASE(WEIGHTD_VERSION_MAJOR, WEIGHTD_VERSION_MINOR, WEIGHTD_VERSION_PATCH);
}

static void read_link(const char *path, char *ret, size_t size)
{
	ssize_t n = readlink(path, ret, size - 1);

	ret[n < 0 ? 0 : n] = '\0';
}

/* The linker has the name of a library with its folder, and that of a program as the caller has typed it. */
static void library_find(void)
{
	Dl_info info;

	if (!dladdr((const void *)library_find, &info) || !info.dli_fname ||
	    !strchr(info.dli_fname, '/') || !realpath(info.dli_fname, library))
		read_link("/proc/self/exe", library, sizeof(library));
}

const char *weightd_library(void)
{
	(void)pthread_once(&library_once, library_find);
	return library;
}

void release_take(struct weightd *w, const struct wire_hello_reply *reply)
{
	const size_t n = strspn(reply->release, "0123456789.");

	w->server_pid = (pid_t)reply->pid;
	w->has_server_program = false;
	(void)snprintf(w->server_release, sizeof(w->server_release), "%.*s", (int)n, reply->release);
}

static bool is_weightd(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash && (!strcmp(slash, "/weightd") || !strcmp(slash, "/weightd (deleted)"));
}

/*
 * The kernel shows the file of a program to its own user and root, its arguments to all; systemd starts weightd by its
 * path. In another namespace the number belongs to another process, or to none.
 */
static void find_program(pid_t pid, char *ret, size_t size)
{
	cleanup(fd_closep) int fd = -1;
	char path[32];
	uint64_t n;

	(void)snprintf(path, sizeof(path), "/proc/%d/exe", (int)pid);
	read_link(path, ret, size);
	if (!ret[0]) {
		(void)snprintf(path, sizeof(path), "/proc/%d/cmdline", (int)pid);
		fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd >= 0 && fd_read_all(fd, ret, size - 1, &n) == 0)
			ret[n] = '\0';
	}
	if (!is_weightd(ret))
		ret[0] = '\0';
}

const char *release_program(struct weightd *w)
{
	if (!w->has_server_program)
		find_program(w->server_pid, w->server_program, sizeof(w->server_program));
	w->has_server_program = true;
	return w->server_program;
}

struct identity {
	char text[256];
};

/* "weightd 0.1.0 at /run/weightd/weightd.sock ('/usr/sbin/weightd')", the release and the file where they are known. */
static const char *describe_server(const struct weightd *w, struct identity *id)
{
	const char *space = w->server_release[0] ? " " : "";
	char program[256];

	find_program(w->server_pid, program, sizeof(program));
	if (program[0])
		(void)snprintf(id->text, sizeof(id->text), "weightd%s%s at %s (%s)", space,
			       w->server_release, w->path, quote_name(&(struct quote){0}, program));
	else
		(void)snprintf(id->text, sizeof(id->text), "weightd%s%s at %s", space,
			       w->server_release, w->path);
	return id->text;
}

int release_too_old(const struct weightd *w, struct sentence *s, const char *to)
{
	return sentence_set(s, -EOPNOTSUPP,
			    "%s is too old to %s: install the release of libweightd, %s (%s)",
			    describe_server(w, &(struct identity){0}), to, weightd_release(),
			    weightd_library());
}

int release_mismatch(struct weightd *w, int r, const char *what)
{
	return sentence_set(&w->sentence, r,
			    "%s %s: use the release of libweightd, %s (%s), or restart the program with "
			    "the other",
			    describe_server(w, &(struct identity){0}), what, weightd_release(),
			    weightd_library());
}

/*
 * Reads /proc/PID/cgroup, and names the container by the path alone.
 */
#include "bpf/base/cgroup.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"

#define TEXT_MAX 16384 /* bytes read of /proc/PID/cgroup */
#define DIGITS_MIN 12

/* The mount points of version 2: on its own, or beside version 1. */
static const char *const mounts[] = {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};

static size_t count_digits(const char *text, size_t n)
{
	size_t i = 0;

	while (i < n && (isdigit((unsigned char)text[i]) || (text[i] >= 'a' && text[i] <= 'f')))
		i++;
	return i;
}

/* As the last part of a UUID is, of a pod for one. */
static bool follows_uuid(const char *name, size_t at)
{
	return at >= 6 && name[at - 6] == '-' && count_digits(name + at - 5, 4) == 4;
}

/*
 * "<id>", "docker-<id>.scope", "system.slice:docker:<id>" and their like; conmon is beside a container, not in it.
 */
static bool container_of_name(const char *name, size_t n, char ret[CONTAINER_SIZE])
{
	size_t at, n_digits;

	if (n > strlen(".scope") && !strncmp(name + n - strlen(".scope"), ".scope", strlen(".scope")))
		n -= strlen(".scope");
	for (at = n; at > 0 && name[at - 1] != '-' && name[at - 1] != ':'; at--)
		;
	n_digits = n - at;
	if (n_digits < DIGITS_MIN || n_digits >= CONTAINER_SIZE ||
	    count_digits(name + at, n_digits) < n_digits || follows_uuid(name, at) ||
	    memmem(name, at, "conmon", strlen("conmon")))
		return false;
	memcpy(ret, name + at, n_digits);
	ret[n_digits] = '\0';
	return true;
}

bool cgroup_container(const char *path, char ret[CONTAINER_SIZE])
{
	size_t end = strlen(path), begin;

	/* A container may have groups of its own there. */
	for (; end > 0; end = begin > 0 ? begin - 1 : 0) {
		for (begin = end; begin > 0 && path[begin - 1] != '/'; begin--)
			;
		if (container_of_name(path + begin, end - begin, ret))
			return true;
	}
	return false;
}

/*
 * A path of a container is better than one of version 2, and a longer one better than a shorter one.
 */
static size_t rank_of(const char *path, bool is_v2)
{
	char container[CONTAINER_SIZE];
	size_t n = strlen(path);

	if (cgroup_container(path, container))
		n += 2 * TEXT_MAX;
	return is_v2 && n > 1 ? n + TEXT_MAX : n;
}

const char *cgroup_parse(char *text)
{
	const char *best = NULL;
	size_t rank, best_rank = 0;
	char *line, *controllers, *path, *rest = text;

	while ((line = strsep(&rest, "\n"))) {
		controllers = strchr(line, ':');
		path = controllers ? strchr(controllers + 1, ':') : NULL;
		if (!path || path[1] != '/')
			continue;
		rank = rank_of(++path, controllers[1] == ':');
		if (rank <= best_rank)
			continue;
		best = path;
		best_rank = rank;
	}
	return best;
}

char *cgroup_of(pid_t pid)
{
	cleanup(fd_closep) int fd = -1;
	cleanup(freep) char *text = malloc(TEXT_MAX);
	const char *path;
	char name[32];
	uint64_t n;

	(void)snprintf(name, sizeof(name), "/proc/%d/cgroup", pid);
	fd = open(name, O_RDONLY | O_CLOEXEC);
	if (!text || fd < 0 || fd_read_all(fd, text, TEXT_MAX - 1, &n) < 0)
		return NULL;
	text[n] = '\0';
	path = cgroup_parse(text);
	return path ? strdup(path) : NULL;
}

static int open_root(const char **ret_mount, int *ret_fd)
{
	struct statfs st;

	for (size_t i = 0; i < sizeof(mounts) / sizeof(*mounts); i++) {
		cleanup(fd_closep) int fd = open(mounts[i], O_PATH | O_DIRECTORY | O_CLOEXEC);

		if (fd < 0 || fstatfs(fd, &st) < 0 || st.f_type != CGROUP2_SUPER_MAGIC)
			continue;
		*ret_mount = mounts[i];
		*ret_fd = take_fd(fd);
		return 0;
	}
	return -ENOTSUP;
}

/* Returns the path of a descriptor in the hierarchy, without links and dots. */
static int path_of(int fd, const char *mount, char **ret)
{
	char link[32], path[PATH_MAX];
	ssize_t n;

	(void)snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, sizeof(path) - 1);
	if (n < 0)
		return -errno;
	path[n] = '\0';
	*ret = strdup(path[strlen(mount)] ? path + strlen(mount) : "/");
	return *ret ? 0 : -ENOMEM;
}

/* Nowhere else than in the hierarchy: a path that leads to somebody's own filesystem may take for ever. */
int cgroup_open(const char *path, int *ret_fd, char **ret_path)
{
	const struct open_how how = {.flags = O_PATH | O_DIRECTORY | O_CLOEXEC,
				     .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_XDEV |
						RESOLVE_NO_SYMLINKS};
	cleanup(fd_closep) int root = -1, fd = -1;
	const char *mount;
	int r = open_root(&mount, &root);
	size_t n;

	if (r < 0)
		return r;
	n = strlen(mount);
	if (!strncmp(path, mount, n) && (path[n] == '/' || !path[n]))
		path += n;
	fd = (int)syscall(SYS_openat2, root, *path ? path : "/", &how, sizeof(how));
	r = fd < 0 ? -errno : path_of(fd, mount, ret_path);
	if (r < 0)
		return r;
	*ret_fd = take_fd(fd);
	return 0;
}

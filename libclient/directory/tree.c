/*
 * Modes do not bind root. The immutable flag of a file system does: it forbids new, renamed and removed entries in a
 * directory, and writes to a file, until it is cleared.
 */
#include "libclient/directory/tree.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"

#define DEPTH_MAX 40
#define WRITE_BITS 0222
#define OTHERS_WRITE_BITS 0022
#define OPEN_FLAGS (O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK)

static bool component_is_plain(const char *name, size_t n)
{
	return n > 0 && n <= NAME_MAX && !(n <= 2 && !strncmp(name, "..", n));
}

bool tree_takes(const char *path)
{
	unsigned depth = 0;

	if (strlen(path) >= PATH_MAX)
		return false;
	for (;;) {
		size_t n = strcspn(path, "/");

		if (!component_is_plain(path, n) || ++depth > DEPTH_MAX)
			return false;
		if (!path[n])
			return true;
		path += n + 1;
	}
}

/* Opens the folder for the last component of `path`, which it returns, and creates those that are missing. */
static int open_parent(int top_fd, const char *path, const char **ret_name)
{
	cleanup(fd_closep) int fd = openat(top_fd, ".", OPEN_FLAGS | O_DIRECTORY);
	const char *slash;

	if (fd < 0)
		return -errno;
	while ((slash = strchr(path, '/'))) {
		char name[NAME_MAX + 1] = "";
		int below;

		memcpy(name, path, (size_t)(slash - path));
		if (mkdirat(fd, name, 0700) < 0 && errno != EEXIST)
			return -errno;
		below = openat(fd, name, OPEN_FLAGS | O_DIRECTORY);
		if (below < 0)
			return -errno;
		(void)fd_close(fd);
		fd = below;
		path = slash + 1;
	}
	*ret_name = path;
	return take_fd(fd);
}

int tree_add_link(int top_fd, const char *path, const char *target)
{
	const char *name = NULL;
	cleanup(fd_closep) int fd = open_parent(top_fd, path, &name);

	if (fd < 0)
		return fd;
	return symlinkat(target, fd, name) < 0 ? -errno : 0;
}

int tree_add_file(int top_fd, const char *path, const void *data, uint64_t size)
{
	const char *name = NULL;
	cleanup(fd_closep) int fd = open_parent(top_fd, path, &name);
	cleanup(fd_closep) int file = -1;

	if (fd < 0)
		return fd;
	file = openat(fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (file < 0)
		return -errno;
	return fd_write_all(file, data, size);
}

/* Fails where the file system has no such flag, and without CAP_LINUX_IMMUTABLE. */
static void set_immutable(int fd, bool on)
{
	unsigned flags = 0;

	if (ioctl(fd, FS_IOC_GETFLAGS, &flags) < 0 || !!(flags & FS_IMMUTABLE_FL) == on)
		return;
	flags ^= FS_IMMUTABLE_FL;
	(void)ioctl(fd, FS_IOC_SETFLAGS, &flags);
}

/* Calls for the directories of a tree and for their entries; a negative result ends the walk. */
struct visitor {
	int (*enter)(struct visitor *v, int fd); /* a directory, before its entries; may be NULL */
	int (*entry)(struct visitor *v, int fd, const char *name, const struct stat *st);
	int (*leave)(struct visitor *v, int fd); /* after them; may be NULL */
	mode_t mode;
	mode_t forbidden; /* bits that no mode may have */
	int top_fd;
	bool has_link;
};

static int walk(struct visitor *v, int fd, unsigned depth);

static int walk_entry(struct visitor *v, int fd, const char *name, unsigned depth)
{
	struct stat st;

	if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	if (S_ISDIR(st.st_mode)) {
		cleanup(fd_closep) int below = openat(fd, name, OPEN_FLAGS | O_DIRECTORY);
		int r = below < 0 ? -errno : walk(v, below, depth + 1);

		if (r < 0)
			return r;
	}
	return v->entry(v, fd, name, &st);
}

static int walk(struct visitor *v, int fd, unsigned depth)
{
	cleanup(tree_closedirp) DIR *dir = NULL;
	cleanup(fd_closep) int own = -1;
	struct dirent *e;
	int r = v->enter ? v->enter(v, fd) : 0;

	if (r < 0)
		return r;
	if (depth > DEPTH_MAX)
		return -ELOOP;
	own = openat(fd, ".", OPEN_FLAGS | O_DIRECTORY);
	dir = own < 0 ? NULL : fdopendir(own);
	if (!dir)
		return -errno;
	(void)take_fd(own);
	for (errno = 0; (e = readdir(dir)); errno = 0) {
		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
			continue;
		r = walk_entry(v, fd, e->d_name, depth);
		if (r < 0)
			return r;
	}
	if (errno)
		return -errno;
	return v->leave ? v->leave(v, fd) : 0;
}

static int protect_directory(struct visitor *v, int fd)
{
	if (fchmod(fd, v->mode & ~(mode_t)WRITE_BITS) < 0)
		return -errno;
	if (fd != v->top_fd)
		set_immutable(fd, true);
	return 0;
}

static int protect_entry(struct visitor *v, int fd, const char *name, const struct stat *st)
{
	cleanup(fd_closep) int file = -1;

	if (!S_ISREG(st->st_mode))
		return 0;
	file = openat(fd, name, OPEN_FLAGS);
	if (file < 0 || fchmod(file, v->mode & 0444) < 0)
		return -errno;
	set_immutable(file, true);
	return 0;
}

int tree_protect(int top_fd, mode_t mode)
{
	struct visitor v = {
		.entry = protect_entry, .leave = protect_directory, .mode = mode, .top_fd = top_fd};

	return walk(&v, top_fd, 0);
}

void tree_seal(int top_fd)
{
	set_immutable(top_fd, true);
}

static int unprotect_directory(struct visitor *v, int fd)
{
	(void)v;
	set_immutable(fd, false);
	return fchmod(fd, 0700) < 0 ? -errno : 0;
}

static int remove_entry(struct visitor *v, int fd, const char *name, const struct stat *st)
{
	(void)v;
	if (S_ISREG(st->st_mode)) {
		cleanup(fd_closep) int file = openat(fd, name, OPEN_FLAGS);

		if (file >= 0)
			set_immutable(file, false);
	}
	return unlinkat(fd, name, S_ISDIR(st->st_mode) ? AT_REMOVEDIR : 0) < 0 ? -errno : 0;
}

int tree_clear(int top_fd)
{
	struct visitor v = {.enter = unprotect_directory, .entry = remove_entry};

	return walk(&v, top_fd, 0);
}

static bool leads_to_descriptor(int fd, const char *name)
{
	char target[64] = "", end;
	ssize_t n = readlinkat(fd, name, target, sizeof(target) - 1);
	unsigned number;

	if (n < 0)
		return false;
	if (sscanf(target, "/proc/self/fd/%u%c", &number, &end) == 1)
		return true;
	return sscanf(target, "/proc/%*u/fd/%u%c", &number, &end) == 1;
}

static int check_directory(struct visitor *v, int fd)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return -errno;
	return st.st_uid == geteuid() && !(st.st_mode & v->forbidden) ? 0 : -EPERM;
}

static int check_entry(struct visitor *v, int fd, const char *name, const struct stat *st)
{
	if (S_ISDIR(st->st_mode))
		return 0;
	if (S_ISLNK(st->st_mode) && leads_to_descriptor(fd, name)) {
		v->has_link = true;
		return 0;
	}
	return S_ISREG(st->st_mode) && st->st_uid == geteuid() && !(st->st_mode & v->forbidden)
		       ? 0
		       : -EPERM;
}

static bool is_of_holder(int top_fd, mode_t forbidden)
{
	struct visitor v = {.enter = check_directory, .entry = check_entry, .forbidden = forbidden};

	return walk(&v, top_fd, 0) == 0 && v.has_link;
}

bool tree_is_protected(int top_fd)
{
	return is_of_holder(top_fd, WRITE_BITS);
}

bool tree_is_unfinished(int top_fd)
{
	return is_of_holder(top_fd, OTHERS_WRITE_BITS);
}

static int refuse_entry(struct visitor *v, int fd, const char *name, const struct stat *st)
{
	(void)v;
	(void)fd;
	(void)name;
	(void)st;
	return -ENOTEMPTY;
}

/* An entry that is a directory is walked first, which ends as early. */
bool tree_is_empty(int top_fd)
{
	struct visitor v = {.entry = refuse_entry};

	return walk(&v, top_fd, 0) == 0;
}

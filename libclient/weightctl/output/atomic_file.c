/*
 * Files that are made once. The name is given by link(), which unlike rename() replaces nothing, unless something is
 * to be replaced.
 */
#include "libclient/weightctl/output/atomic_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libclient/weightctl/output/cli_error.h"

static int write_all(int fd, const char *text)
{
	size_t left = strlen(text);

	while (left) {
		ssize_t n = write(fd, text, left);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		text += n;
		left -= (size_t)n;
	}
	return 0;
}

/* The mode is set again, as the umask may have taken some of it. */
static int atomic_file_fill(int fd, mode_t mode, const char *text)
{
	int r;

	if (fchmod(fd, mode) < 0)
		return -errno;
	r = write_all(fd, text);
	if (r < 0)
		return r;
	return fsync(fd) < 0 ? -errno : 0;
}

int atomic_file_write(int dir_fd, const char *name, mode_t mode, const char *text,
		      struct atomic_file *ret)
{
	struct atomic_file f = {.dir_fd = dir_fd, .name = name};
	uint64_t tag;
	int fd, r;

	if (getrandom(&tag, sizeof(tag), 0) != sizeof(tag))
		return -EIO;
	(void)snprintf(f.temporary, sizeof(f.temporary), ".%s.%016" PRIx64, name, tag);
	fd = openat(dir_fd, f.temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	r = atomic_file_fill(fd, mode, text);
	if (close(fd) < 0 && r >= 0)
		r = -errno;
	if (r < 0)
		atomic_file_deinit(&f);
	else
		*ret = f;
	return r;
}

int atomic_file_keep(struct atomic_file *f)
{
	if (linkat(f->dir_fd, f->temporary, f->dir_fd, f->name, 0) < 0)
		return -errno;
	atomic_file_deinit(f);
	return fsync(f->dir_fd) < 0 ? -errno : 0;
}

int atomic_file_replace(struct atomic_file *f)
{
	struct stat st;

	if (fstatat(f->dir_fd, f->name, &st, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISREG(st.st_mode))
		return -EEXIST;
	if (renameat(f->dir_fd, f->temporary, f->dir_fd, f->name) < 0)
		return -errno;
	*f->temporary = '\0';
	return fsync(f->dir_fd) < 0 ? -errno : 0;
}

int atomic_file_output(const char *path, const char *text)
{
	struct atomic_file f = {};
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	char *folder = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path))
			     : strdup(".");
	int fd, r;

	if (!folder)
		cli_out_of_memory();
	fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	r = fd < 0 ? -errno : 0;
	if (r == 0)
		r = *name ? atomic_file_write(fd, name, 0644, text, &f) : -EISDIR;
	if (r == 0)
		r = atomic_file_replace(&f);
	atomic_file_deinit(&f);
	if (fd >= 0)
		(void)close(fd);
	free(folder);
	if (r == -EEXIST)
		return cli_error("cannot replace %s: it is no regular file; without --output it is "
				 "printed",
				 path);
	return r < 0 ? cli_error("cannot write %s: %s", path, strerror(-r)) : 0;
}

void atomic_file_deinit(struct atomic_file *f)
{
	if (*f->temporary)
		(void)unlinkat(f->dir_fd, f->temporary, 0);
	*f->temporary = '\0';
}

int atomic_file_folder(const char *path)
{
	int fd;

	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		return -errno;
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

/* Up to `max` bytes and the end of the string behind them. */
static int read_all(int fd, size_t max, char *ret)
{
	size_t at = 0;
	ssize_t n;

	while ((n = read(fd, ret + at, max + 1 - at)) != 0) {
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		at += (size_t)n;
		if (at > max)
			return -EFBIG;
	}
	ret[at] = '\0';
	return strlen(ret) == at ? 0 : -EINVAL;
}

int atomic_file_read(int dir_fd, const char *name, size_t max, char **ret, mode_t *ret_mode)
{
	struct stat st;
	char *text;
	int fd, r;

	fd = openat(dir_fd, name, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	text = malloc(max + 1);
	if (!text)
		r = -ENOMEM;
	else if (fstat(fd, &st) < 0)
		r = -errno;
	else if (!S_ISREG(st.st_mode))
		r = S_ISDIR(st.st_mode) ? -EISDIR : -EINVAL;
	else
		r = read_all(fd, max, text);
	(void)close(fd);
	if (r < 0) {
		free(text);
		return r;
	}
	*ret = text;
	*ret_mode = st.st_mode & 07777;
	return 0;
}

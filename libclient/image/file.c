#include "libclient/image/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"

#define QUOTED_PATH_MAX 140

const char *file_quote(struct quote *q, const char *path)
{
	char cut[QUOTED_PATH_MAX + 4];
	size_t n = strlen(path);
	const char *tail;

	if (n <= QUOTED_PATH_MAX)
		return quote_bytes(q, path, n);
	tail = strchr(path + n - QUOTED_PATH_MAX, '/');
	if (!tail)
		return quote_bytes(q, path, n);
	(void)snprintf(cut, sizeof(cut), "...%s", tail);
	return quote_bytes(q, cut, strlen(cut));
}

static struct file_identity identity_of(const struct stat *st)
{
	return (struct file_identity){
		.dev = st->st_dev,
		.ino = st->st_ino,
		.size = (uint64_t)st->st_size,
		.mtime = st->st_mtim,
		.ctime = st->st_ctim,
	};
}

static bool same_time(const struct timespec *a, const struct timespec *b)
{
	return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

static int open_failed(const char *path, int r, struct sentence *s)
{
	return sentence_set(s, r, "cannot open %s: %s", file_quote(&(struct quote){0}, path),
			    strerror(-r));
}

int file_open(const char *path, struct file *ret, struct sentence *s)
{
	cleanup(fd_closep) int fd = -1;
	struct stat st;
	char *copy;

	/* Without O_NONBLOCK the open of a FIFO would wait for a writer. */
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	if (fd < 0)
		return open_failed(path, -errno, s);
	if (fstat(fd, &st) < 0)
		return open_failed(path, -errno, s);
	if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
		return sentence_set(s, -EBADMSG, "%s is neither a regular file nor a directory",
				    file_quote(&(struct quote){0}, path));
	if (fcntl(fd, F_SETFL, 0) < 0) /* some file systems heed O_NONBLOCK in reads */
		return open_failed(path, -errno, s);
	copy = strdup(path);
	if (!copy)
		return open_failed(path, -ENOMEM, s);
	*ret = (struct file){
		.path = copy,
		.fd = take_fd(fd),
		.is_directory = S_ISDIR(st.st_mode),
		.identity = identity_of(&st),
	};
	return 0;
}

void file_deinit(struct file *f)
{
	if (f->remote)
		f->remote->kind->close(f->remote);
	f->remote = NULL;
	f->fd = fd_close(f->fd);
	free(f->path);
	f->path = NULL;
}

int file_read_failed(const struct file *f, uint64_t offset, int r, struct sentence *s)
{
	struct quote q;

	if (r == 0)
		return sentence_set(s, -EBADMSG,
				    "%s was truncated while it was loaded: nothing at byte %" PRIu64
				    " of %" PRIu64,
				    file_quote(&q, f->path), offset, f->identity.size);
	return sentence_set(s, r, "reading %s at byte %" PRIu64 " failed: %s",
			    file_quote(&q, f->path), offset, strerror(-r));
}

int file_read(const struct file *f, void *buffer, uint64_t size, uint64_t offset, struct sentence *s)
{
	char *p = buffer;

	if (f->remote)
		return f->remote->kind->read(f->remote, buffer, size, offset, s);
	while (size > 0) {
		ssize_t n = pread(f->fd, p, size, (off_t)offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return file_read_failed(f, offset, n < 0 ? -errno : 0, s);
		p += n;
		size -= (uint64_t)n;
		offset += (uint64_t)n;
	}
	return 0;
}

static int changed(const struct file *f, const char *how, struct sentence *s)
{
	return sentence_set(s, -EBADMSG, "%s was %s while it was loaded; load it again",
			    file_quote(&(struct quote){0}, f->path), how);
}

int file_check_unchanged(const struct file *f, struct sentence *s)
{
	const struct file_identity *was = &f->identity;
	struct file_identity is;
	struct stat st;

	if (f->remote)
		return 0;
	if (stat(f->path, &st) < 0)
		return changed(f, errno == ENOENT ? "removed" : "made unreachable", s);
	if (st.st_dev != was->dev || st.st_ino != was->ino)
		return changed(f, "replaced", s);
	if (fstat(f->fd, &st) < 0)
		return file_read_failed(f, 0, -errno, s);
	is = identity_of(&st);
	if (is.size < was->size)
		return changed(f, "truncated", s);
	if (is.size > was->size || !same_time(&is.mtime, &was->mtime) ||
	    !same_time(&is.ctime, &was->ctime))
		return changed(f, "changed", s);
	return 0;
}

#include "libclient/save/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "libclient/image/file.h"

#define PIECE (4 * MIB) /* written at once: a cancel waits for one */
#define WINDOW (32 * MIB) /* dirty memory that the kernel begins to write */

#define QUOTE(text) quote_bytes(&(struct quote){0}, text, strlen(text))
#define QUOTE_PATH(path) file_quote(&(struct quote){0}, path)

static int output_failed(const struct output *o, int r)
{
	struct sentence *s = o->run->s;
	char size[NUM_SIZE_MAX];

	if (r == -ENOSPC || r == -EDQUOT)
		return sentence_set(s, r,
				    "cannot save to %s: %s while %s was written; the save needs %s "
				    "there",
				    QUOTE_PATH(o->run->folder),
				    r == -ENOSPC ? "the disk is full" : "the disk quota is used up",
				    QUOTE(o->path), num_format_size(size, o->run->needed));
	if (r == -EEXIST)
		return sentence_set(s, r, "cannot save to %s: two files would have the name %s",
				    QUOTE_PATH(o->run->folder), QUOTE(o->path));
	return sentence_set(s, r, "cannot save to %s: writing %s failed: %s",
			    QUOTE_PATH(o->run->folder), QUOTE(o->path), strerror(-r));
}

/* Opens the folder of the file, and makes those that lead to it. */
static int open_folder(const struct output *o, int *ret_fd, const char **ret_name)
{
	cleanup(fd_closep) int fd = fcntl(o->run->folder_fd, F_DUPFD_CLOEXEC, 0);
	const char *at = o->path, *slash;

	while (fd >= 0 && (slash = strchr(at, '/'))) {
		cleanup(freep) char *name = strndup(at, (size_t)(slash - at));
		int below;

		if (!name)
			return -ENOMEM;
		if (mkdirat(fd, name, 0777) < 0 && errno != EEXIST)
			return -errno;
		below = openat(fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		(void)fd_close(fd);
		fd = below;
		at = slash + 1;
	}
	if (fd < 0)
		return -errno;
	*ret_fd = take_fd(fd);
	*ret_name = at;
	return 0;
}

/* A full disk is noticed here, before anything is written. Some file systems cannot reserve room. */
static int reserve(const struct output *o, uint64_t size)
{
	if (size == 0 || fallocate(o->fd, 0, 0, (off_t)size) == 0 || errno == EOPNOTSUPP ||
	    errno == ENOSYS || errno == EINTR)
		return 0;
	return -errno;
}

int output_open(struct output *o, struct save_run *run, const char *path, uint64_t size)
{
	cleanup(fd_closep) int folder_fd = -1;
	const char *name = path;
	int r;

	*o = (struct output){.run = run, .path = path, .fd = -1};
	r = open_folder(o, &folder_fd, &name);
	if (r < 0)
		return output_failed(o, r);
	o->fd = openat(folder_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
	r = o->fd < 0 ? -errno : reserve(o, size);
	return r < 0 ? output_failed(o, r) : 0;
}

/* Without this, the disk would be idle until the end and have everything to do then. */
static void start_writeback(struct output *o)
{
	if (o->size - o->started < WINDOW)
		return;
	(void)sync_file_range(o->fd, (off_t)o->started, (off_t)(o->size - o->started),
			      SYNC_FILE_RANGE_WRITE); /* only earlier, not needed */
	o->started = o->size;
}

/* Pieces end at multiples of their size in the file: one that divides a page has it written twice. */
static uint64_t piece_of(const struct output *o, uint64_t n)
{
	uint64_t piece = PIECE - o->size % PIECE;

	return n < piece ? n : piece;
}

int output_write(struct output *o, const void *data, uint64_t n)
{
	const char *p = data;

	while (n > 0) {
		ssize_t written = write(o->fd, p, piece_of(o, n));

		if (written < 0 && errno == EINTR)
			continue;
		if (written <= 0)
			return output_failed(o, written < 0 ? -errno : -ENOSPC);
		p += written;
		n -= (uint64_t)written;
		o->size += (uint64_t)written;
		start_writeback(o);
	}
	return 0;
}

int output_write_weights(struct output *o, const void *data, uint64_t n)
{
	struct save_run *run = o->run;
	const char *p = data;

	while (n > 0) {
		uint64_t piece = piece_of(o, n);
		int r = output_write(o, p, piece);

		if (r < 0)
			return r;
		p += piece;
		n -= piece;
		run->done += piece;
		if (progress_report(&run->progress, "write", run->done, run->total) < 0)
			return sentence_set(run->s, -ECANCELED, "the save was cancelled");
	}
	return 0;
}

int output_finish(struct output *o)
{
	int fd = take_fd(o->fd);
	int r = fsync(fd) < 0 ? -errno : 0;

	if (close(fd) < 0 && r == 0)
		r = -errno;
	return r < 0 ? output_failed(o, r) : 0;
}

void output_deinit(struct output *o)
{
	o->fd = fd_close(o->fd);
}

int output_file(struct save_run *run, const char *path, const void *data, uint64_t n)
{
	cleanup(output_deinit) struct output o = OUTPUT_INIT;
	int r = output_open(&o, run, path, n);

	if (r == 0)
		r = output_write(&o, data, n);
	return r < 0 ? r : output_finish(&o);
}

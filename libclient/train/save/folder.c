#include "libclient/train/save/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/quote.h"
#include "libclient/train/plan/sentence.h"

#define TRIES_MAX 20 /* to make a folder that another save does not remove at once */
#define TAG_DIGITS 16

#define OPEN_FOLDER (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

static int fail(const char *path, const char *what, int r)
{
	struct quote q;

	return train_fail(r, "cannot save to %s: %s: %s", quote_bytes(&q, path, strlen(path)), what,
			  r == -ENOSPC ? "the disk is full" : strerror(-r));
}

static void closedirp(DIR **dir)
{
	if (*dir)
		(void)closedir(*dir);
}

/* The entries of a folder, from its beginning. NULL: errno. */
static DIR *list(int fd)
{
	int copy = openat(fd, ".", OPEN_FOLDER);
	DIR *dir = copy < 0 ? NULL : fdopendir(copy);

	if (!dir)
		(void)fd_close(copy);
	return dir;
}

/* --- Removal --------------------------------------------------------------------------------------- */

/* All that is in it as well, without following links. Another save may remove it, too. 0 or the first -errno. */
static int remove_folder(int parent_fd, const char *name)
{
	cleanup(fd_closep) int fd = openat(parent_fd, name, OPEN_FOLDER);
	cleanup(closedirp) DIR *dir = fd < 0 ? NULL : list(fd);
	int first = dir ? 0 : -errno;

	for (const struct dirent *e; dir && (e = readdir(dir));) {
		int r = 0;

		if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
			continue;
		if (unlinkat(fd, e->d_name, 0) < 0)
			r = errno == EISDIR ? remove_folder(fd, e->d_name) : -errno;
		if (r != -ENOENT)
			first = first ? first : r;
	}
	if (unlinkat(parent_fd, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
		return first ? first : -errno;
	return 0;
}

static void hidden_name(uint64_t step, uint64_t tag, char ret[CHECKPOINT_NAME_MAX])
{
	char name[CHECKPOINT_NAME_MAX];

	checkpoint_folder_name(step, name);
	(void)snprintf(ret, CHECKPOINT_NAME_MAX, ".%.40s-%0*" PRIx64, name, TAG_DIGITS, tag);
}

static bool is_hidden(const char *name)
{
	char folder[CHECKPOINT_NAME_MAX];
	const char *dash = strrchr(name, '-');
	uint64_t step;

	if (*name != '.' || !dash || dash == name || dash - name > CHECKPOINT_NAME_MAX - 1)
		return false;
	(void)snprintf(folder, sizeof(folder), "%.*s", (int)(dash - name - 1), name + 1);
	return checkpoint_folder_parse(folder, &step) &&
	       strspn(dash + 1, "0123456789abcdef") == TAG_DIGITS && !dash[1 + TAG_DIGITS];
}

/* Another user's stays. */
static void remove_leftovers(int fd)
{
	cleanup(closedirp) DIR *dir = list(fd);

	for (const struct dirent *e; dir && (e = readdir(dir));) {
		cleanup(fd_closep) int hidden_fd = -1;

		if (!is_hidden(e->d_name))
			continue;
		hidden_fd = openat(fd, e->d_name, OPEN_FOLDER);
		if (hidden_fd >= 0 && flock(hidden_fd, LOCK_EX | LOCK_NB) == 0)
			(void)remove_folder(fd, e->d_name);
	}
}

/* --- Making ---------------------------------------------------------------------------------------- */

int folder_hidden_path(const char *path, uint64_t step, uint64_t tag, char ret[FOLDER_PATH_MAX])
{
	char name[CHECKPOINT_NAME_MAX];

	hidden_name(step, tag, name);
	if (snprintf(ret, FOLDER_PATH_MAX, "%s/%s", path, name) >= FOLDER_PATH_MAX)
		return fail(path, "its path", -ENAMETOOLONG);
	return 0;
}

/* -EAGAIN: another save removed it before it was locked. */
static int lock_hidden(const struct folder *f)
{
	struct stat here, there;

	if (flock(f->hidden_fd, LOCK_EX | LOCK_NB) < 0)
		return errno == EWOULDBLOCK ? -EAGAIN : -errno;
	if (fstat(f->hidden_fd, &here) < 0)
		return -errno;
	if (fstatat(f->fd, f->hidden, &there, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? -EAGAIN : -errno;
	return here.st_ino == there.st_ino && here.st_dev == there.st_dev ? 0 : -EAGAIN;
}

static int make_hidden(struct folder *f)
{
	int r;

	if (getrandom(&f->tag, sizeof(f->tag), 0) != sizeof(f->tag))
		return -errno;
	hidden_name(f->step, f->tag, f->hidden);
	if (mkdirat(f->fd, f->hidden, 0777) < 0) {
		r = -errno;
		f->hidden[0] = '\0';
		return r == -EEXIST ? -EAGAIN : r;
	}
	f->hidden_fd = openat(f->fd, f->hidden, OPEN_FOLDER);
	if (f->hidden_fd < 0)
		return errno == ENOENT ? -EAGAIN : -errno;
	r = lock_hidden(f);
	if (r < 0)
		f->hidden_fd = fd_close(f->hidden_fd);
	return r;
}

int folder_open(struct folder *f, const char *path, uint64_t step)
{
	int r = -EAGAIN;

	f->path = path;
	f->step = step;
	if (mkdir(path, 0777) < 0 && errno != EEXIST)
		return fail(path, "the folder cannot be made", -errno);
	f->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (f->fd < 0)
		return errno == ENOTDIR ? fail(path, "name a folder", -ENOTDIR)
					: fail(path, "the folder cannot be opened", -errno);
	remove_leftovers(f->fd);
	for (int i = 0; r == -EAGAIN && i < TRIES_MAX; i++)
		r = make_hidden(f);
	return r < 0 ? fail(path, "no folder can be made in it", r) : 0;
}

int folder_write(const struct folder *f, const char *name, const char *text)
{
	cleanup(fd_closep) int fd = openat(f->hidden_fd, name,
					   O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
					   0666);
	int r = fd < 0 ? -errno : fd_write_all(fd, text, strlen(text));

	if (r == 0 && fsync(fd) < 0)
		r = -errno;
	return r < 0 ? fail(f->path, name, r) : 0;
}

/* --- Commit ---------------------------------------------------------------------------------------- */

/* The hidden name has the older checkpoint then, if there was one. -EAGAIN: another save removed that meanwhile. */
static int try_name(struct folder *f, const char *name)
{
	if (renameat2(f->fd, f->hidden, f->fd, name, RENAME_NOREPLACE) == 0) {
		f->hidden[0] = '\0';
		return 0;
	}
	if (errno == EEXIST) {
		if (renameat2(f->fd, f->hidden, f->fd, name, RENAME_EXCHANGE) == 0)
			return 0;
		return errno == ENOENT ? -EAGAIN : -errno;
	}
	/* Some file systems have no flags: a rename replaces an empty folder, and nothing else. */
	if (errno != EINVAL || renameat(f->fd, f->hidden, f->fd, name) < 0)
		return -errno;
	f->hidden[0] = '\0';
	return 0;
}

static int give_name(struct folder *f)
{
	char name[CHECKPOINT_NAME_MAX];
	int r = -EAGAIN;

	checkpoint_folder_name(f->step, name);
	for (int i = 0; r == -EAGAIN && i < TRIES_MAX; i++)
		r = try_name(f, name);
	return r == -EAGAIN ? -ENOENT : r;
}

bool folder_is_checkpoint(int parent_fd, const char *path)
{
	cleanup(fd_closep) int fd = openat(parent_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	return fd >= 0 && faccessat(fd, CHECKPOINT_TRAINER, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

struct found {
	char name[CHECKPOINT_NAME_MAX];
	uint64_t step;
	struct timespec written;
};

/* Newest first. */
static int compare_found(const void *a, const void *b)
{
	const struct found *i = a, *j = b;

	if (i->written.tv_sec != j->written.tv_sec)
		return i->written.tv_sec < j->written.tv_sec ? 1 : -1;
	if (i->written.tv_nsec != j->written.tv_nsec)
		return i->written.tv_nsec < j->written.tv_nsec ? 1 : -1;
	return i->step < j->step ? 1 : -(i->step > j->step);
}

/* Checkpoints in a folder, newest first; the caller frees them. */
static int find_all(int fd, struct found **ret, size_t *ret_n)
{
	cleanup(closedirp) DIR *dir = list(fd);
	cleanup(freep) struct found *all = NULL;
	size_t n = 0, max = 0;

	if (!dir)
		return -errno;
	for (const struct dirent *e; (e = readdir(dir));) {
		struct found found;
		struct stat st;

		if (!checkpoint_folder_parse(e->d_name, &found.step) ||
		    !folder_is_checkpoint(fd, e->d_name) ||
		    fstatat(fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
			continue;
		(void)snprintf(found.name, sizeof(found.name), "%.60s", e->d_name);
		found.written = st.st_mtim;
		if (n == max) {
			void *more = reallocarray(all, max = 2 * max + 8, sizeof(*all));

			if (!more)
				return -ENOMEM;
			all = more;
		}
		all[n++] = found;
	}
	if (n)
		qsort(all, n, sizeof(*all), compare_found);
	*ret = take_ptr(all);
	*ret_n = n;
	return 0;
}

/* Out of sight, then gone. */
static int remove_checkpoint(int fd, const struct found *old)
{
	char hidden[CHECKPOINT_NAME_MAX];
	uint64_t tag;

	if (getrandom(&tag, sizeof(tag), 0) != sizeof(tag))
		return -errno;
	hidden_name(old->step, tag, hidden);
	if (renameat(fd, old->name, fd, hidden) < 0)
		return errno == ENOENT ? 0 : -errno;
	return remove_folder(fd, hidden);
}

static int remove_old(struct folder *f, uint32_t keep)
{
	cleanup(freep) struct found *all = NULL;
	char name[CHECKPOINT_NAME_MAX];
	size_t n = 0, kept = 1; /* the one that was just written */
	int first = find_all(f->fd, &all, &n);

	checkpoint_folder_name(f->step, name);
	for (size_t i = 0; i < n; i++) {
		int r;

		if (!strcmp(all[i].name, name) || kept++ < keep)
			continue;
		r = remove_checkpoint(f->fd, &all[i]);
		first = first ? first : r;
	}
	return first;
}

int folder_commit(struct folder *f, uint32_t keep)
{
	int r = fsync(f->hidden_fd) < 0 ? -errno : give_name(f);

	if (r == 0 && fsync(f->fd) < 0)
		r = -errno;
	if (r < 0)
		return fail(f->path, "the checkpoint cannot be put in its place", r);
	r = f->hidden[0] ? remove_folder(f->fd, f->hidden) : 0;
	f->hidden[0] = '\0';
	if (r == 0 && keep)
		r = remove_old(f, keep);
	return r < 0 ? fail(f->path, "the checkpoint is there, but an older one cannot be removed",
			    r)
		     : 0;
}

void folder_deinit(struct folder *f)
{
	if (f->hidden[0])
		(void)remove_folder(f->fd, f->hidden);
	f->hidden_fd = fd_close(f->hidden_fd);
	f->fd = fd_close(f->fd);
}

int folder_newest(const char *path, char ret[CHECKPOINT_NAME_MAX])
{
	cleanup(fd_closep) int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cleanup(freep) struct found *all = NULL;
	size_t n = 0;
	int r = fd < 0 ? -errno : find_all(fd, &all, &n);
	struct quote q;

	if (r < 0)
		return train_fail(r, "cannot load from %s: %s", quote_bytes(&q, path, strlen(path)),
				  strerror(-r));
	if (!n)
		return train_fail(-ENOENT, "%s has no checkpoint, which is a folder called step-...",
				  quote_bytes(&q, path, strlen(path)));
	memcpy(ret, all[0].name, CHECKPOINT_NAME_MAX);
	return 0;
}

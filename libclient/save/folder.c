#include "libclient/save/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "libclient/image/file.h"
#include "libclient/save/contents.h"

#define TRIES_MAX 20 /* to make a folder that another save does not remove at once */

#define QUOTE(path) file_quote(&(struct quote){0}, path)

#define NAME_KEPT 200 /* bytes of a name in those of its temporary folders */
#define OLD "-old" /* end of the name of a folder that another replaces */

/* Names of temporary folders: this, and 8 digits. */
static void temporary_prefix(const struct save_folder *f, char ret[256])
{
	(void)snprintf(ret, 256, ".%.*s.weightd-", NAME_KEPT, f->name);
}

/* --- Places ----------------------------------------------------------------------------------- */

static int place_failed(const char *path, int r, struct sentence *s)
{
	return sentence_set(s, r, "cannot save to %s: %s", QUOTE(path), strerror(-r));
}

/* The path of something that does not exist yet: its parent's, resolved, and its name. */
static int resolve_new(const char *path, char **ret, struct sentence *s)
{
	cleanup(freep) char *copy = strdup(path);
	cleanup(freep) char *parent = NULL;
	size_t n = copy ? strlen(copy) : 0;
	struct stat st;
	char *slash;

	if (!copy)
		return place_failed(path, -ENOMEM, s);
	while (n > 1 && copy[n - 1] == '/')
		copy[--n] = '\0';
	slash = strrchr(copy, '/');
	if (slash)
		*slash = '\0';
	parent = realpath(slash ? (*copy ? copy : "/") : ".", NULL);
	if (!parent)
		return sentence_set(s, -errno,
				    "cannot save to %s: the folder that it would be in cannot be "
				    "used: %s",
				    QUOTE(path), strerror(errno));
	if (asprintf(ret, "%s/%s", strcmp(parent, "/") ? parent : "", slash ? slash + 1 : copy) < 0)
		return place_failed(path, -ENOMEM, s);
	if (lstat(*ret, &st) == 0)
		return sentence_set(s, -ENOENT,
				    "cannot save to %s: it is a link that leads nowhere; remove it, or "
				    "make the folder that it names",
				    QUOTE(path));
	return 0;
}

static int resolve(struct save_folder *f, const char *path, struct sentence *s)
{
	int r = 0;

	if (*path == '\0')
		return sentence_set(s, -EINVAL, "no folder to save to was named");
	f->path = realpath(path, NULL);
	f->exists = f->path;
	if (!f->path && errno == ENOENT)
		r = resolve_new(path, &f->path, s);
	else if (!f->path)
		r = place_failed(path, -errno, s);
	if (r < 0)
		return r;
	f->name = strrchr(f->path, '/') + 1;
	if (*f->name == '\0')
		return sentence_set(s, -EBUSY, "cannot save to '/': name a folder below it");
	return 0;
}

static int open_parent(struct save_folder *f, struct sentence *s)
{
	cleanup(freep) char *parent = strndup(f->path,
					      (size_t)(f->name - f->path - (f->name - f->path > 1)));

	if (!parent)
		return place_failed(f->path, -ENOMEM, s);
	f->parent_fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return f->parent_fd < 0 ? place_failed(f->path, -errno, s) : 0;
}

/* Also one whose device is that of its parent, by a bind. Kernels before 5.8 do not tell that. */
static bool is_mount_point(int fd, int parent_fd)
{
	struct stat here, parent;
	struct statx found;

	if (statx(fd, "", AT_EMPTY_PATH, 0, &found) == 0 &&
	    (found.stx_attributes & STATX_ATTR_MOUNT_ROOT))
		return true;
	return fstat(fd, &here) < 0 || fstat(parent_fd, &parent) < 0 || here.st_dev != parent.st_dev;
}

static int check_place(struct save_folder *f, bool replace, struct sentence *s)
{
	cleanup(fd_closep) int fd = -1;
	struct stat st;
	int r;

	if (!f->exists)
		return 0;
	fd = openat(f->parent_fd, f->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 && errno == ENOTDIR)
		return sentence_set(s, -ENOTDIR,
				    "cannot save to %s: it is not a folder; name a new one",
				    QUOTE(f->path));
	if (fd < 0 || fstat(fd, &st) < 0)
		return place_failed(f->path, -errno, s);
	if (is_mount_point(fd, f->parent_fd))
		return sentence_set(s, -EBUSY,
				    "cannot save to %s: it is a mount point, which cannot be "
				    "replaced; name a folder below it",
				    QUOTE(f->path));
	r = contents_is_empty(fd);
	if (r < 0)
		return place_failed(f->path, r, s);
	f->is_empty = r;
	f->mode = st.st_mode & 07777;
	if (f->is_empty)
		return 0;
	if (!replace)
		return sentence_set(s, -ENOTEMPTY,
				    "cannot save to %s: it is not empty; name another folder, or "
				    "replace all of it with --force",
				    QUOTE(f->path));
	if (!contents_has_weights(fd))
		return sentence_set(s, -ENOTEMPTY,
				    "cannot replace %s: it has no weights, so it is no model; "
				    "remove its files, or name another folder",
				    QUOTE(f->path));
	if (flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK)
		return sentence_set(
			s, -EBUSY,
			"cannot replace %s: it is in use, by 'weightctl export' for example; "
			"end that first, or name another folder",
			QUOTE(f->path));
	return 0;
}

/* --- Temporary folders ------------------------------------------------------------------------ */

static bool is_temporary(const char *name, const char *prefix)
{
	size_t n = strlen(prefix);

	return !strncmp(name, prefix, n) && strspn(name + n, "0123456789abcdef") == 8 &&
	       (name[n + 8] == '\0' || !strcmp(name + n + 8, OLD));
}

/*
 * A process that was killed between two renames has moved the model away, and no other to its place. True: the
 * folder is not such a model, and can be removed.
 */
static bool put_back(struct save_folder *f, const char *name)
{
	size_t n = strlen(name);

	if (n < strlen(OLD) || strcmp(name + n - strlen(OLD), OLD) != 0)
		return true;
	if (strlen(f->name) > NAME_KEPT) /* it was cut: this may be of another place */
		return false;
	if (f->exists || faccessat(f->parent_fd, f->name, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
		return true;
	f->exists = renameat(f->parent_fd, name, f->parent_fd, f->name) == 0;
	return false;
}

static void remove_unlocked(struct save_folder *f, const char *name)
{
	cleanup(fd_closep) int fd = openat(f->parent_fd, name,
					   O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0)
		return;
	if (put_back(f, name))
		(void)contents_remove(f->parent_fd, name); /* another user's stays */
}

/* Removes what processes that were killed left of saves to this place. */
static void remove_leftovers(struct save_folder *f)
{
	int fd = openat(f->parent_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *entry;
	char prefix[256];

	if (!dir) {
		(void)fd_close(fd);
		return;
	}
	temporary_prefix(f, prefix);
	while ((entry = readdir(dir)))
		if (is_temporary(entry->d_name, prefix))
			remove_unlocked(f, entry->d_name);
	(void)closedir(dir);
}

/* Locks the new folder. -EAGAIN: another save removed it before it was locked. */
static int lock_temporary(const struct save_folder *f)
{
	struct stat here, there;

	if (flock(f->fd, LOCK_EX | LOCK_NB) < 0)
		return -errno;
	if (fstat(f->fd, &here) < 0)
		return -errno;
	if (fstatat(f->parent_fd, f->temporary, &there, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? -EAGAIN : -errno;
	return here.st_dev == there.st_dev && here.st_ino == there.st_ino ? 0 : -EAGAIN;
}

static int make_folder(struct save_folder *f)
{
	char prefix[256];
	uint32_t number;

	temporary_prefix(f, prefix);
	if (getrandom(&number, sizeof(number), 0) != sizeof(number))
		return -errno;
	(void)snprintf(f->temporary, sizeof(f->temporary), "%.240s%08x", prefix, number);
	if (mkdirat(f->parent_fd, f->temporary, 0777) < 0) {
		int r = -errno;

		f->temporary[0] = '\0';
		return r;
	}
	return 0;
}

/* Makes a folder and locks it, or leaves none. -EEXIST, -EAGAIN: another try may succeed. */
static int try_temporary(struct save_folder *f, const char **ret_what)
{
	int r = make_folder(f);

	*ret_what = "no folder can be made beside it";
	if (r < 0)
		return r;
	*ret_what = "the new folder beside it cannot be locked";
	f->fd = openat(f->parent_fd, f->temporary, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	r = f->fd < 0 ? -errno : lock_temporary(f);
	if (r == 0)
		return 0;
	f->fd = fd_close(f->fd);
	(void)unlinkat(f->parent_fd, f->temporary, AT_REMOVEDIR);
	f->temporary[0] = '\0';
	return r;
}

static int make_temporary(struct save_folder *f, struct sentence *s)
{
	const char *what = "";
	int r = -EAGAIN;

	for (unsigned i = 0; i < TRIES_MAX && (r == -EAGAIN || r == -EEXIST); i++)
		r = try_temporary(f, &what);
	if (r == 0)
		return 0;
	return sentence_set(s, r, "cannot save to %s: %s: %s", QUOTE(f->path), what, strerror(-r));
}

int save_folder_open(struct save_folder *f, const char *path, bool replace, struct sentence *s)
{
	int r = resolve(f, path, s);

	if (r == 0)
		r = open_parent(f, s);
	if (r < 0)
		return r;
	remove_leftovers(f);
	r = check_place(f, replace, s);
	return r < 0 ? r : make_temporary(f, s);
}

/* --- Commit ----------------------------------------------------------------------------------- */

static int rename_failed(const struct save_folder *f, int r, struct sentence *s)
{
	if (r == -EEXIST || r == -ENOTEMPTY)
		return sentence_set(s, r, "cannot save to %s: another process has put files there",
				    QUOTE(f->path));
	return place_failed(f->path, r, s);
}

/* File systems that cannot exchange folders: the place is empty for a moment. */
static int replace_by_two_renames(struct save_folder *f)
{
	cleanup(fd_closep) int fd = openat(f->parent_fd, f->name,
					   O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	char old[sizeof(f->temporary)];

	if (fd >= 0)
		(void)flock(fd, LOCK_EX | LOCK_NB); /* no other save shall put it back */
	(void)snprintf(old, sizeof(old), "%.250s" OLD, f->temporary);
	if (renameat(f->parent_fd, f->name, f->parent_fd, old) < 0)
		return -errno;
	if (renameat(f->parent_fd, f->temporary, f->parent_fd, f->name) < 0) {
		int r = -errno;

		(void)renameat(f->parent_fd, old, f->parent_fd, f->name);
		return r;
	}
	memcpy(f->temporary, old, sizeof(old));
	return 0;
}

/* The old folder has the temporary name then. */
static int replace_old(struct save_folder *f)
{
	if (renameat2(f->parent_fd, f->temporary, f->parent_fd, f->name, RENAME_EXCHANGE) == 0)
		return 0;
	return errno == EINVAL ? replace_by_two_renames(f) : -errno;
}

static int remove_old(struct save_folder *f, struct sentence *s)
{
	int r;

	if (!f->temporary[0])
		return 0;
	r = contents_remove(f->parent_fd, f->temporary);
	if (r < 0)
		r = sentence_set(s, r,
				 "the version was saved to %s, but what it replaced cannot be removed "
				 "(%s): remove %s beside it",
				 QUOTE(f->path), strerror(-r), QUOTE(f->temporary));
	f->temporary[0] = '\0';
	return r;
}

static int move_new(struct save_folder *f)
{
	int r = renameat2(f->parent_fd, f->temporary, f->parent_fd, f->name, RENAME_NOREPLACE);

	/* Without flags a rename replaces an empty folder, and nothing else. */
	if (r < 0 && (f->exists || errno == EINVAL))
		r = renameat(f->parent_fd, f->temporary, f->parent_fd, f->name);
	if (r < 0)
		return -errno;
	f->temporary[0] = '\0';
	return 0;
}

int save_folder_commit(struct save_folder *f, struct sentence *s)
{
	int r = 0;

	if (f->exists && fchmod(f->fd, f->mode) < 0)
		r = -errno;
	if (r == 0 && fsync(f->fd) < 0)
		r = -errno;
	if (r < 0)
		return place_failed(f->path, r, s);
	r = f->exists && !f->is_empty ? replace_old(f) : move_new(f);
	if (r < 0)
		return rename_failed(f, r, s);
	/* The save is complete. A crash before this may undo all of it, and no part. */
	(void)fsync(f->parent_fd);
	return remove_old(f, s);
}

void save_folder_deinit(struct save_folder *f)
{
	if (f->temporary[0])
		(void)contents_remove(f->parent_fd, f->temporary);
	f->fd = fd_close(f->fd);
	f->parent_fd = fd_close(f->parent_fd);
	free(take_ptr(f->path));
}

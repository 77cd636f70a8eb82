/*
 * A directory is locked only after it exists, and removers of leftovers take the same lock. So a maker that finds its
 * directory locked or removed makes another one.
 *
 * A user may have a directory with such a name. Two kinds are removed: protected ones with a link to a descriptor, and
 * ones that no holder has finished, whose names begin with a dot. In these the link is made before the first file.
 */
#include "libclient/directory/model_place.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "libclient/directory/tree.h"

#define PREFIX "weightd-model-"
#define HIDDEN_PREFIX ".weightd-model-"
#define RANDOM "XXXXXX"
#define TRIES_MAX 20
#define OPEN_FLAGS (O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK)

static bool is_ours(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 && st.st_uid == geteuid();
}

static bool is_linked(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 && st.st_nlink > 0;
}

static bool is_leftover(int fd, bool is_hidden)
{
	if (is_hidden)
		return tree_is_empty(fd) || tree_is_unfinished(fd);
	return tree_is_protected(fd);
}

static void remove_leftover(int folder_fd, const char *name)
{
	cleanup(fd_closep) int fd = openat(folder_fd, name, OPEN_FLAGS | O_NOFOLLOW);

	if (fd < 0 || !is_ours(fd) || flock(fd, LOCK_EX | LOCK_NB) < 0)
		return;
	if (is_leftover(fd, name[0] == '.') && tree_clear(fd) == 0)
		(void)unlinkat(folder_fd, name, AT_REMOVEDIR);
}

static bool is_random_name(const char *name, const char *prefix)
{
	size_t n = strlen(prefix);

	return !strncmp(name, prefix, n) && strlen(name) == n + strlen(RANDOM);
}

static void remove_leftovers(const char *folder)
{
	cleanup(tree_closedirp) DIR *dir = opendir(folder);
	struct dirent *e;

	while (dir && (e = readdir(dir)))
		if (is_random_name(e->d_name, PREFIX) || is_random_name(e->d_name, HIDDEN_PREFIX))
			remove_leftover(dirfd(dir), e->d_name);
}

/* 0; -EAGAIN: a remover of leftovers was faster. */
static int lock_new(struct model_place *p)
{
	cleanup(fd_closep) int fd = open(p->path, OPEN_FLAGS | O_NOFOLLOW);

	if (fd < 0)
		return errno == ENOENT ? -EAGAIN : -errno;
	if (flock(fd, LOCK_EX | LOCK_NB) < 0)
		return errno == EWOULDBLOCK ? -EAGAIN : -errno;
	if (!is_linked(fd))
		return -EAGAIN;
	p->fd = take_fd(fd);
	p->is_made = true;
	return 0;
}

static int make_private_in(struct model_place *p, const char *folder)
{
	int r = -EAGAIN;

	for (int i = 0; i < TRIES_MAX && r == -EAGAIN; i++) {
		cleanup(freep) char *path = NULL;

		if (asprintf(&path, "%s/" HIDDEN_PREFIX RANDOM, folder) < 0)
			return path = NULL, -ENOMEM;
		if (!mkdtemp(path))
			return -errno;
		free(p->path);
		p->path = take_ptr(path);
		r = lock_new(p);
		p->is_hidden = r == 0;
		if (r < 0 && r != -EAGAIN)
			(void)rmdir(p->path);
	}
	return r;
}

/* A folder that su or sudo left in the environment belongs to another user. */
static bool is_users_own(const char *folder)
{
	struct stat st;

	return stat(folder, &st) == 0 && st.st_uid == geteuid();
}

/* In the first folder that takes one, of those that were not tried. -ENOENT: all were. */
static int make_private(struct model_place *p)
{
	const char *runtime = secure_getenv("XDG_RUNTIME_DIR");
	const char *const folders[] = {
		runtime && is_users_own(runtime) ? runtime : NULL,
		secure_getenv("TMPDIR"),
		"/tmp",
	};
	int r = -ENOENT;

	while (p->n_tried < ARRAY_LEN(folders) && r < 0) {
		const char *folder = folders[p->n_tried++];

		if (!folder || folder[0] != '/')
			continue;
		remove_leftovers(folder);
		r = make_private_in(p, folder);
	}
	return r;
}

static int make_first_private(struct model_place *p, struct sentence *s)
{
	int r = make_private(p);

	if (r < 0)
		return sentence_set(
			s, r, "no directory can be made in $XDG_RUNTIME_DIR, $TMPDIR or /tmp: %s",
			strerror(-r));
	return 0;
}

static int refuse(const struct model_place *p, int r, const char *why, struct sentence *s)
{
	return sentence_set(s, r, "%s %s",
			    quote_bytes(&(struct quote){0}, p->path, strlen(p->path)), why);
}

static int refuse_error(const struct model_place *p, int r, struct sentence *s)
{
	return sentence_set(s, r, "%s cannot be made: %s",
			    quote_bytes(&(struct quote){0}, p->path, strlen(p->path)), strerror(-r));
}

static int take_given(struct model_place *p, struct sentence *s)
{
	cleanup(fd_closep) int fd = open(p->path, OPEN_FLAGS);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return refuse_error(p, -errno, s);
	if (st.st_uid != geteuid())
		return refuse(p, -EPERM,
			      "belongs to another user; name a directory that does not exist yet",
			      s);
	if (flock(fd, LOCK_EX | LOCK_NB) < 0)
		return refuse(p, -EBUSY, "is in use by another holder; end that first", s);
	if (!tree_is_empty(fd)) {
		if (!tree_is_protected(fd) || tree_clear(fd) < 0)
			return refuse(
				p, -ENOTEMPTY,
				"is not empty; name an empty directory, or one that does not exist yet",
				s);
	}
	p->mode = (st.st_mode & 07777) | 0700;
	p->fd = take_fd(fd);
	return 0;
}

static int make_given(struct model_place *p, const char *path, struct sentence *s)
{
	cleanup(freep) char *here = path[0] == '/' ? strdup("") : get_current_dir_name();
	int r = here ? 0 : -errno;

	if (!*path)
		return sentence_set(s, -ENOENT, "'' is no path of a directory");
	if (r < 0 && r != -ENOMEM)
		return sentence_set(s, r, "the current directory cannot be found: %s", strerror(-r));
	if (!here || asprintf(&p->path, "%s%s%s", here, *here ? "/" : "", path) < 0) {
		p->path = NULL;
		return sentence_set(s, -ENOMEM, "out of memory");
	}
	if (mkdir(p->path, 0700) < 0)
		return errno == EEXIST ? take_given(p, s) : refuse_error(p, -errno, s);
	r = lock_new(p);
	if (r < 0) {
		(void)rmdir(p->path);
		return refuse_error(p, r, s);
	}
	return 0;
}

int model_place_init(struct model_place *p, const char *path, struct sentence *s)
{
	int r;

	*p = (struct model_place){.fd = -1};
	r = path ? make_given(p, path, s) : make_first_private(p, s);
	if (r < 0)
		model_place_forget(p);
	return r;
}

/* The new name is taken first by an empty directory, which the renamed one replaces. */
static int reveal(struct model_place *p)
{
	int folder_length = (int)(strrchr(p->path, '/') - p->path);
	cleanup(freep) char *path = NULL;
	int r = 0;

	if (asprintf(&path, "%.*s/" PREFIX RANDOM, folder_length, p->path) < 0)
		return path = NULL, -ENOMEM;
	if (!mkdtemp(path))
		return -errno;
	if (rename(p->path, path) < 0) {
		r = -errno;
		(void)rmdir(path);
		return r;
	}
	free(p->path);
	p->path = take_ptr(path);
	p->is_hidden = false;
	return 0;
}

int model_place_finish(struct model_place *p, mode_t mode)
{
	int r = tree_protect(p->fd, mode);

	if (r == 0 && p->is_hidden)
		r = reveal(p);
	if (r == 0)
		tree_seal(p->fd);
	return r;
}

/* Another directory may have that path by now. */
static bool is_still_there(const struct model_place *p)
{
	struct stat here, there;

	return fstat(p->fd, &here) == 0 && lstat(p->path, &there) == 0 &&
	       here.st_dev == there.st_dev && here.st_ino == there.st_ino;
}

void model_place_deinit(struct model_place *p)
{
	if (p->fd < 0)
		return;
	(void)tree_clear(p->fd);
	if (!p->is_made)
		(void)fchmod(p->fd, p->mode);
	else if (is_still_there(p))
		(void)rmdir(p->path);
	model_place_forget(p);
}

int model_place_move(struct model_place *p)
{
	if (!p->is_hidden)
		return -ENOSPC;
	model_place_deinit(p);
	if (make_private(p) == 0)
		return 0;
	model_place_forget(p);
	return -ENOSPC;
}

void model_place_forget(struct model_place *p)
{
	p->fd = fd_close(p->fd);
	free(p->path);
	p->path = NULL;
}

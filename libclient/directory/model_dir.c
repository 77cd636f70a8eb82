/*
 * Directories that programs read a model from by its path
 *
 * The weights are links to descriptors of the holder, which is this process. The kernel opens such a link for processes
 * of the same user alone, and only while the holder lives.
 */
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
#include "libclient/connection/client.h"
#include "libclient/directory/model_place.h"
#include "libclient/directory/tree.h"
#include "weightd.h"

/*
 * Few processes have descriptors from this number on. So the link of a dead holder leads nowhere even if another
 * process has its number.
 */
#define FIRST_FD 900
#define LINK_MAX 64
#define OTHERS_READ 0004

struct held_version {
	char *name;
	uint64_t wanted; /* 0: the current one */
	struct weightd_buffer *b;
	struct weightd_files *files; /* NULL: it has none */
	int fd;
	char *path; /* path of the weights below the directory */
};

struct weightd_model_dir {
	struct weightd *w; /* referenced */
	pid_t owner; /* a child of that process must not remove the directory */
	struct model_place place;
	struct held_version *versions;
	size_t n;
	int self_fd;
	const uint32_t *demanded; /* the owner of all buffers; the caller's, until they are attached */
	mode_t mode;
};

static void held_version_deinit(struct held_version *v)
{
	weightd_files_free(v->files);
	weightd_detach(v->b);
	(void)fd_close(v->fd);
	free(v->path);
	free(v->name);
}

void weightd_model_dir_free(struct weightd_model_dir *d)
{
	if (!d)
		return;
	if (d->owner == getpid())
		model_place_deinit(&d->place);
	else
		model_place_forget(&d->place);
	for (size_t i = 0; i < d->n; i++)
		held_version_deinit(&d->versions[i]);
	free(d->versions);
	client_unref(d->w);
	free(d);
}
CLEANUP_POINTER(struct weightd_model_dir, weightd_model_dir_free);

const char *weightd_model_dir_path(const struct weightd_model_dir *d)
{
	return d->place.path;
}

int weightd_model_dir_weights(const struct weightd_model_dir *d, size_t i,
			      struct weightd_model_weights *ret)
{
	struct weightd_model_weights found;

	if (i >= d->n)
		return -ENOENT;
	if (ret->size < sizeof(ret->size))
		return -EINVAL;
	found = (struct weightd_model_weights){
		.size = ret->size < sizeof(found) ? ret->size : sizeof(found),
		.name = weightd_buffer_name(d->versions[i].b),
		.version = weightd_buffer_version(d->versions[i].b),
		.path = d->versions[i].path,
		.fd = d->versions[i].fd,
	};
	memcpy(ret, &found, found.size);
	return 0;
}

static const char *quote(struct quote *q, const char *text)
{
	return quote_bytes(q, text, strlen(text));
}

#define QUOTE(text) quote(&(struct quote){0}, text)

/* Cuts NAME[@VERSION]. */
static int parse_spec(struct held_version *v, const char *spec, struct sentence *s)
{
	const char *at = strchrnul(spec, '@');
	char *end = NULL;

	v->name = strndup(spec, (size_t)(at - spec));
	if (!v->name)
		return sentence_set(s, -ENOMEM, "out of memory");
	if (!*at)
		return 0;
	errno = 0;
	if (at[1] >= '0' && at[1] <= '9')
		v->wanted = strtoull(at + 1, &end, 10);
	if (!v->wanted || errno || *end)
		return sentence_set(s, -EINVAL,
				    "%s has no version after the '@', which is a number from 1",
				    QUOTE(spec));
	return 0;
}

/* Several versions have a folder each, named like the buffer. */
static int check_names(const struct weightd_model_dir *d, struct sentence *s)
{
	if (d->n == 1)
		return 0;
	for (size_t i = 0; i < d->n; i++) {
		const char *name = d->versions[i].name;

		if (!tree_takes(name))
			return sentence_set(
				s, -EINVAL,
				"%s cannot be the name of a folder, which several models need; name it alone",
				QUOTE(name));
		for (size_t j = 0; j < i; j++)
			if (!strcmp(name, d->versions[j].name))
				return sentence_set(
					s, -EEXIST,
					"%s is named twice; a directory has one version of a buffer",
					QUOTE(name));
	}
	return 0;
}

static int refuse_flat(const struct held_version *v, struct sentence *s)
{
	return sentence_set(
		s, -EOPNOTSUPP,
		"'%s@%" PRIu64
		"' is not stored as a file: an older weightd or an older program made it, or its "
		"buffer is exclusive or reusable (weightctl show %s); write it to a directory (weightctl save "
		"%s@%" PRIu64 " DIR) and load that (weightctl load NAME DIR)",
		v->name, weightd_buffer_version(v->b), v->name, v->name,
		weightd_buffer_version(v->b));
}

static int attach_version(struct weightd_model_dir *d, struct held_version *v)
{
	struct weightd_location location = {.size = sizeof(location)};
	const struct weightd_attach_options options = {
		.size = sizeof(options),
		.version = v->wanted,
		.ret_fd = &v->fd,
		.owner = d->demanded,
	};
	int fd, r = weightd_attach(d->w, v->name, &options, &v->b);

	if (r < 0)
		return r;
	r = weightd_buffer_location(v->b, &location);
	if (r < 0)
		return r;
	if (!location.data_offset)
		return refuse_flat(v, &d->w->sentence);
	fd = fcntl(v->fd, F_DUPFD_CLOEXEC, FIRST_FD);
	if (fd >= 0) {
		(void)fd_close(v->fd);
		v->fd = fd;
	}
	return 0;
}

/* Removes the permissions that the mode of the buffer does not give to others. */
static int restrict_mode(struct weightd_model_dir *d, const struct held_version *v)
{
	const struct weightd_buffer_info *info;
	struct weightd_list *l;
	int r = weightd_list(d->w, v->name, &l);
	bool others_read = false;

	if (r < 0)
		return r;
	for (size_t i = 0; (info = weightd_list_buffer(l, i)); i++)
		if (!strcmp(info->device, "host") && info->mode & OTHERS_READ)
			others_read = true;
	weightd_list_free(l);
	if (!others_read)
		d->mode &= 0500;
	return 0;
}

/* The path of a file of the version below the directory. */
static int join(struct weightd_model_dir *d, const struct held_version *v, const char *path,
		char **ret)
{
	cleanup(freep) char *joined = NULL;

	if (asprintf(&joined, "%s%s%s", d->n > 1 ? v->name : "", d->n > 1 ? "/" : "", path) < 0) {
		joined = NULL;
		return sentence_set(&d->w->sentence, -ENOMEM, "out of memory");
	}
	if (!tree_takes(path) || !tree_takes(joined))
		return sentence_set(&d->w->sentence, -EBADMSG,
				    "%s of '%s@%" PRIu64
				    "' cannot be a path in a directory: it would leave it, or is too "
				    "deep; publish the version again with another name",
				    QUOTE(path), v->name, weightd_buffer_version(v->b));
	*ret = take_ptr(joined);
	return 0;
}

static int get_files(struct weightd_model_dir *d, struct held_version *v)
{
	const char *weights = NULL;
	int r = weightd_files_get(d->w, v->name, NULL, weightd_buffer_version(v->b), &v->files);

	if (r < 0 && r != -ENODATA && r != -EOPNOTSUPP)
		return r;
	if (r == 0)
		weights = weightd_files_value(v->files, "weights");
	if (!weights)
		weights = "model.safetensors";
	return join(d, v, weights, &v->path);
}

static int refuse_entry(struct weightd_model_dir *d, const struct held_version *v, const char *path,
			int r)
{
	return sentence_set(
		&d->w->sentence, r, "%s of '%s@%" PRIu64 "' cannot be made in %s: %s%s",
		QUOTE(path), v->name, weightd_buffer_version(v->b), d->place.path, strerror(-r),
		r == -ENOSPC || r == -EDQUOT ? "; $TMPDIR can name a folder with more room" : "");
}

static int add_file(struct weightd_model_dir *d, const struct held_version *v,
		    const struct weightd_file *file)
{
	cleanup(freep) char *path = NULL;
	int r;

	r = join(d, v, file->path, &path);
	if (r < 0)
		return r;
	r = tree_add_file(d->place.fd, path, file->data, file->n_bytes);
	return r < 0 ? refuse_entry(d, v, path, r) : 0;
}

static int add_files(struct weightd_model_dir *d, const struct held_version *v)
{
	size_t n = v->files ? weightd_files_count(v->files) : 0;
	int r = 0;

	for (size_t i = 0; i < n && r == 0; i++) {
		struct weightd_file file = {.size = sizeof(file)};

		r = weightd_files_file(v->files, i, &file);
		if (r == 0)
			r = add_file(d, v, &file);
	}
	return r;
}

/* The link is useless where /proc is missing or shows the processes of another namespace. */
static int check_link(const struct weightd_model_dir *d, const struct held_version *v,
		      const char *target)
{
	struct stat here, there;

	if (fstat(v->fd, &here) == 0 && fstatat(d->place.fd, v->path, &there, 0) == 0 &&
	    here.st_dev == there.st_dev && here.st_ino == there.st_ino)
		return 0;
	if (access("/proc/self/fd", F_OK) < 0)
		return sentence_set(
			&d->w->sentence, -ENOLINK,
			"/proc is not mounted, by which a path leads to the weights; mount it (mount -t proc "
			"proc /proc), or write the version to a folder (weightctl save)");
	return sentence_set(&d->w->sentence, -ENOLINK,
			    "%s does not lead to the weights of this process: /proc shows another PID "
			    "namespace",
			    target);
}

static int add_weights(struct weightd_model_dir *d, const struct held_version *v, int number)
{
	char target[LINK_MAX];
	int r;

	if (d->self_fd)
		(void)snprintf(target, sizeof(target), "/proc/self/fd/%d", number);
	else
		(void)snprintf(target, sizeof(target), "/proc/%d/fd/%d", (int)getpid(), v->fd);
	r = tree_add_link(d->place.fd, v->path, target);
	if (r < 0)
		return refuse_entry(d, v, v->path, r);
	return d->self_fd ? 0 : check_link(d, v, target);
}

static int fill(struct weightd_model_dir *d)
{
	int r = 0;

	for (size_t i = 0; i < d->n && r == 0; i++) {
		r = add_weights(d, &d->versions[i], d->self_fd + (int)i);
		if (r == 0)
			r = add_files(d, &d->versions[i]);
	}
	if (r < 0)
		return r;
	r = model_place_finish(&d->place, d->mode);
	if (r < 0)
		return sentence_set(&d->w->sentence, r, "'%s' cannot be made read-only: %s",
				    d->place.path, strerror(-r));
	return 0;
}

/* A private directory goes to a folder with more room. */
static int fill_somewhere(struct weightd_model_dir *d)
{
	int r;

	do
		r = fill(d);
	while ((r == -ENOSPC || r == -EDQUOT) && model_place_move(&d->place) == 0);
	return r;
}

static int hold_versions(struct weightd_model_dir *d, const char *const *specs)
{
	int r = 0;

	for (size_t i = 0; i < d->n && r == 0; i++)
		r = parse_spec(&d->versions[i], specs[i], &d->w->sentence);
	if (r == 0)
		r = check_names(d, &d->w->sentence);
	for (size_t i = 0; i < d->n && r == 0; i++) {
		r = attach_version(d, &d->versions[i]);
		if (r == 0)
			r = restrict_mode(d, &d->versions[i]);
		if (r == 0)
			r = get_files(d, &d->versions[i]);
	}
	return r;
}

int weightd_model_dir_new(struct weightd *w, const char *const *specs, size_t n,
			  const struct weightd_model_dir_options *options,
			  struct weightd_model_dir **ret)
{
	struct weightd_model_dir_options o = {0};
	cleanup(weightd_model_dir_freep) struct weightd_model_dir *d = calloc(1, sizeof(*d));
	int r = 0;

	if (!d)
		return sentence_set(&w->sentence, -ENOMEM, "out of memory");
	d->w = client_ref(w);
	d->owner = getpid();
	d->place.fd = -1;
	d->mode = 0555;
	if (options)
		r = client_copy_options(w, options,
					offsetof(struct weightd_model_dir_options, self_fd), &o,
					sizeof(o));
	if (r < 0)
		return r;
	if (n == 0 || o.self_fd < 0)
		return sentence_set(&w->sentence, -EINVAL,
				    "a model directory needs a version and a number of a descriptor");
	d->self_fd = o.self_fd;
	d->demanded = o.owner;
	d->versions = calloc(n, sizeof(*d->versions));
	if (!d->versions)
		return sentence_set(&w->sentence, -ENOMEM, "out of memory");
	for (; d->n < n; d->n++)
		d->versions[d->n].fd = -1;
	r = hold_versions(d, specs);
	if (r == 0)
		r = model_place_init(&d->place, o.path, &w->sentence);
	if (r == 0)
		r = fill_somewhere(d);
	if (r < 0) {
		struct sentence said = w->sentence; /* detaching may fail, too */

		weightd_model_dir_free(take_ptr(d));
		w->sentence = said;
		return r;
	}
	*ret = take_ptr(d);
	return 0;
}

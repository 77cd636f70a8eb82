#include "libclient/load/folder/companion_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"
#include "libclient/image/array.h"
#include "libclient/image/file.h"
#include "libclient/image/file_path.h"
#include "libclient/image/files.h"
#include "libclient/load/folder/companion_name.h"

#define DEPTH_MAX 8
#define CONFIG_SIZE_MAX (16 * MIB)
#define OPEN_FLAGS (O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK)

#define QUOTE(text) quote_bytes(&(struct quote){0}, text, strlen(text))
#define QUOTE_PATH(path) file_quote(&(struct quote){0}, path)

static int out_of_memory(struct companion_folder *c)
{
	return sentence_set(c->s, -ENOMEM, "there is not enough memory for the list of files");
}

static int refuse_open(struct companion_folder *c, const char *path, int r)
{
	return sentence_set(c->s, r,
			    "cannot open %s in %s: %s; load without such files (weightctl load "
			    "--no-files)",
			    QUOTE(path), QUOTE_PATH(c->path), strerror(-r));
}

/* --- Links -------------------------------------------------------------------------------------- */

/* The descriptor, or -errno: -EXDEV for a link that leaves the directory. */
static int open_beneath(int root, const char *path)
{
	const struct open_how how = {
		.flags = OPEN_FLAGS,
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS,
	};
	int fd = (int)syscall(SYS_openat2, root, path, &how, sizeof(how));

	if (fd < 0 && (errno == ENOSYS || errno == EPERM)) { /* a sandbox */
		fd = openat(root, path, OPEN_FLAGS | O_NOFOLLOW);
		if (fd < 0 && errno == ELOOP)
			return -EXDEV;
	}
	return fd < 0 ? -errno : fd;
}

/* The name in "../../blobs/NAME", with one ".." more for each folder of `path`; NULL: another target. */
static const char *blob_of(const char *target, const char *path)
{
	size_t n = 2;

	for (const char *p = path; *p; p++)
		n += *p == '/';
	for (; n > 0; n--, target += 3)
		if (strncmp(target, "../", 3) != 0)
			return NULL;
	if (strncmp(target, "blobs/", 6) != 0)
		return NULL;
	target += 6;
	return *target && *target != '.' && !strchr(target, '/') ? target : NULL;
}

/* A snapshot has nothing but links into the folder beside it, which all snapshots share. */
static int open_blob(const struct companion_folder *c, const char *path)
{
	char target[PATH_MAX];
	ssize_t n = readlinkat(c->fd, path, target, sizeof(target) - 1);
	const char *blob;
	int fd;

	if (n < 0)
		return -EXDEV;
	target[n] = '\0';
	blob = blob_of(target, path);
	if (!blob)
		return -EXDEV;
	fd = openat(c->blobs_fd, blob, OPEN_FLAGS | O_NOFOLLOW);
	return fd < 0 ? -errno : fd;
}

static int companion_open(const struct companion_folder *c, const char *path)
{
	int fd = open_beneath(c->fd, path);

	return fd == -EXDEV && c->blobs_fd >= 0 ? open_blob(c, path) : fd;
}

/* The blobs beside a directory "snapshots/REVISION"; -1: it is none. Looks at the folders: /proc, with the path, may be missing. */
static int open_blobs(int fd)
{
	struct stat parent, snapshots;

	if (fstatat(fd, "..", &parent, 0) < 0 ||
	    fstatat(fd, "../../snapshots", &snapshots, AT_SYMLINK_NOFOLLOW) < 0 ||
	    parent.st_dev != snapshots.st_dev || parent.st_ino != snapshots.st_ino)
		return -1;
	return openat(fd, "../../blobs", O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* --- The list ----------------------------------------------------------------------------------- */

static int leave_out(struct companion_folder *c, const char *path)
{
	if (c->n_left_out++ == 0)
		c->left_out = strdup(path);
	return c->left_out ? 0 : out_of_memory(c);
}

/* Adds what `path` is, or leads to: a regular file, or it is left out. */
static int add_companion(struct companion_folder *c, const char *path)
{
	cleanup(fd_closep) int fd = companion_open(c, path);
	struct sentence ignored;
	struct stat st;

	if (fd == -EXDEV || fd == -ENOENT || fd == -ELOOP)
		return leave_out(c, path);
	if (fd < 0)
		return refuse_open(c, path, fd);
	if (fstat(fd, &st) < 0)
		return refuse_open(c, path, -errno);
	if (!S_ISREG(st.st_mode))
		return 0;
	if (file_path_check(path, strlen(path), &ignored) < 0)
		return leave_out(c, path);
	if (!array_reserve(c->list, c->n, c->max))
		return out_of_memory(c);
	c->list[c->n] = (struct companion){strdup(path), (uint64_t)st.st_size};
	return c->list[c->n++].path ? 0 : out_of_memory(c);
}

/* True if the folder `name` has weights; also if it cannot be listed. */
static bool has_weights(int dir, const char *name)
{
	int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	DIR *list = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *entry;
	bool found = false;

	if (!list) {
		(void)fd_close(fd);
		return true;
	}
	while (!found && (entry = readdir(list)))
		found = entry->d_name[0] != '.' && companion_is_weights(entry->d_name);
	(void)closedir(list);
	return found;
}

/* True for a module of sentence-transformers, whose weights are small: they are files beside those of the version. */
static bool is_module(const struct companion_folder *c, const char *path)
{
	struct weightd_file file = {.size = sizeof(file)};

	return c->modules && weightd_files_find(c->modules, path, &file) == 0;
}

/* True for the folder of the weights that are loaded. */
static bool is_home(const struct companion_folder *c, const char *path)
{
	size_t n = strlen(path);

	return !strncmp(c->weights, path, n) && c->weights[n] == '/';
}

static int list_folder(struct companion_folder *c, int dir, const char *name, const char *path,
		       unsigned depth);

static int visit(struct companion_folder *c, int dir, const char *folder, const char *name,
		 unsigned depth)
{
	cleanup(freep) char *path = NULL;
	struct stat st;

	if (name[0] == '.' || fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return 0;
	if (asprintf(&path, "%s%s%s", folder, *folder ? "/" : "", name) < 0) {
		path = NULL;
		return out_of_memory(c);
	}
	if (S_ISDIR(st.st_mode)) {
		if (depth == DEPTH_MAX ||
		    (has_weights(dir, name) && !is_home(c, path) && !is_module(c, path)))
			return 0;
		return list_folder(c, dir, name, path, depth + 1);
	}
	if (!S_ISREG(st.st_mode) && !S_ISLNK(st.st_mode))
		return 0;
	if (c->configurations
		    ? strcmp(name, "config.json") != 0 && strcmp(name, "model_index.json") != 0
		    : !companion_is_small_file(name) &&
			      !(is_module(c, folder) && !is_home(c, folder) &&
				!strcmp(name, "model.safetensors")))
		return 0;
	return add_companion(c, path);
}

static int list_folder(struct companion_folder *c, int dir, const char *name, const char *path,
		       unsigned depth)
{
	int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), r = 0;
	DIR *list = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *entry;

	if (!list) {
		r = refuse_open(c, *path ? path : ".", -errno);
		(void)fd_close(fd);
		return r;
	}
	while (r == 0) {
		errno = 0;
		entry = readdir(list);
		if (!entry && errno)
			r = refuse_open(c, *path ? path : ".", -errno);
		if (!entry)
			break;
		r = visit(c, fd, path, entry->d_name, depth);
	}
	(void)closedir(list);
	return r;
}

/* --- Modules of sentence-transformers ----------------------------------------------------------- */

/* NULL: the file is missing, too large or not JSON, and says nothing. */
static json_t *read_json(const struct companion_folder *c, const char *path)
{
	cleanup(fd_closep) int fd = companion_open(c, path);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) ||
	    (uint64_t)st.st_size > CONFIG_SIZE_MAX)
		return NULL;
	return json_loadfd(fd, 0, NULL);
}

static int read_modules(struct companion_folder *c)
{
	cleanup(json_decrefp) json_t *modules = read_json(c, "modules.json");
	struct sentence ignored;
	size_t i;
	json_t *module;

	if (!modules)
		return 0;
	if (weightd_files_new(&c->modules) < 0)
		return out_of_memory(c);
	json_array_foreach(modules, i, module)
	{
		const char *path = json_string_value(json_object_get(module, "path"));

		/* "" is the transformer in the directory itself. */
		if (path && *path && files_add(c->modules, path, "", 0, &ignored) == -ENOMEM)
			return out_of_memory(c);
	}
	return 0;
}

/* --- Folders ------------------------------------------------------------------------------------ */

static int folder_init(struct companion_folder *c)
{
	int r;

	c->fd = open(c->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (c->fd < 0)
		return refuse_open(c, ".", -errno);
	c->blobs_fd = open_blobs(c->fd);
	r = c->configurations ? 0 : read_modules(c);
	return r < 0 ? r : list_folder(c, c->fd, ".", "", 0);
}

int companion_folder_init(struct companion_folder *c, const char *path, const char *weights,
			  bool configurations, struct sentence *s)
{
	int r;

	*c = (struct companion_folder){
		.path = path,
		.weights = weights,
		.configurations = configurations,
		.fd = -1,
		.blobs_fd = -1,
		.s = s,
	};
	r = folder_init(c);
	if (r < 0)
		companion_folder_deinit(c);
	return r;
}

void companion_folder_deinit(struct companion_folder *c)
{
	for (size_t i = 0; i < c->n; i++)
		free(c->list[i].path);
	free(c->list);
	free(c->left_out);
	weightd_files_free(c->modules);
	(void)fd_close(c->fd);
	(void)fd_close(c->blobs_fd);
	*c = (struct companion_folder){.fd = -1, .blobs_fd = -1};
}

static int check_sizes(const struct companion_folder *c)
{
	const struct companion *largest = c->list;
	uint64_t sum = 0;

	for (size_t i = 0; i < c->n; i++) {
		sum += c->list[i].size;
		if (c->list[i].size > largest->size)
			largest = &c->list[i];
	}
	if (sum > WEIGHTD_FILES_MAX)
		return sentence_set(c->s, -EFBIG,
				    "the files beside the weights in %s have %" PRIu64
				    " bytes, %d is the most; the largest is %s with %" PRIu64
				    ": remove it, or load without such files (weightctl load "
				    "--no-files)",
				    QUOTE_PATH(c->path), sum, WEIGHTD_FILES_MAX,
				    QUOTE(largest->path), largest->size);
	if (c->n > WEIGHTD_FILES_COUNT_MAX)
		return sentence_set(c->s, -EFBIG,
				    "%s has %zu files beside the weights, %d is the most; load "
				    "without them (weightctl load --no-files)",
				    QUOTE_PATH(c->path), c->n, WEIGHTD_FILES_COUNT_MAX);
	return 0;
}

/* One byte more than it had shows that it grew. */
static int read_companion(struct companion_folder *c, const struct companion *file,
			  struct weightd_files *f)
{
	cleanup(fd_closep) int fd = companion_open(c, file->path);
	cleanup(freep) char *bytes = malloc(file->size + 1);
	uint64_t size;
	int r;

	if (fd < 0)
		return refuse_open(c, file->path, fd);
	if (!bytes)
		return out_of_memory(c);
	r = fd_read_all(fd, bytes, file->size + 1, &size);
	if (r < 0)
		return sentence_set(c->s, r, "reading %s in %s failed: %s", QUOTE(file->path),
				    QUOTE_PATH(c->path), strerror(-r));
	if (size != file->size)
		return sentence_set(c->s, -EBADMSG,
				    "%s in %s was changed while it was loaded; load it again",
				    QUOTE(file->path), QUOTE_PATH(c->path));
	return files_add(f, file->path, bytes, size, c->s);
}

int companion_folder_read(struct companion_folder *c, struct weightd_files *f)
{
	int r = check_sizes(c);

	for (size_t i = 0; r == 0 && i < c->n; i++)
		r = read_companion(c, &c->list[i], f);
	return r;
}

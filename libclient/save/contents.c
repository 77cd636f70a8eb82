#include "libclient/save/contents.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"

static void closedirp(DIR **dir)
{
	if (*dir)
		(void)closedir(*dir);
}

/* A stream over another descriptor of the folder, from its beginning. */
static DIR *contents_list(int fd)
{
	int copy = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = copy < 0 ? NULL : fdopendir(copy);

	if (!dir)
		(void)fd_close(copy);
	return dir;
}

static bool is_dot(const char *name)
{
	return !strcmp(name, ".") || !strcmp(name, "..");
}

/* The next entry; NULL and errno 0 at the end. */
static const struct dirent *next_entry(DIR *dir)
{
	const struct dirent *entry;

	do {
		errno = 0;
		entry = readdir(dir);
	} while (entry && is_dot(entry->d_name));
	return entry;
}

static int remove_entries(int fd, dev_t device);

static int remove_folder(int parent_fd, const char *name, const dev_t *device)
{
	cleanup(fd_closep) int fd = openat(parent_fd, name,
					   O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct stat st;
	int r;

	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	if (device && st.st_dev != *device)
		return -EBUSY;
	/* Its owner may have made it read-only. Of another user's, the removal of an entry tells the error. */
	if ((st.st_mode & S_IRWXU) != S_IRWXU)
		(void)fchmod(fd, (st.st_mode & 07777) | S_IRWXU);
	r = remove_entries(fd, st.st_dev);
	if (unlinkat(parent_fd, name, AT_REMOVEDIR) < 0)
		return r < 0 ? r : -errno;
	return 0;
}

static int remove_entries(int fd, dev_t device)
{
	cleanup(closedirp) DIR *dir = contents_list(fd);
	const struct dirent *entry;
	int first = 0;

	if (!dir)
		return -errno;
	while ((entry = next_entry(dir))) {
		int r = unlinkat(fd, entry->d_name, 0) < 0 ? -errno : 0;

		if (r == -EISDIR || r == -EPERM)
			r = remove_folder(fd, entry->d_name, &device);
		if (r < 0 && first == 0)
			first = r;
	}
	return first;
}

int contents_remove(int parent_fd, const char *name)
{
	return remove_folder(parent_fd, name, NULL);
}

int contents_is_empty(int fd)
{
	cleanup(closedirp) DIR *dir = contents_list(fd);

	if (!dir)
		return -errno;
	if (next_entry(dir))
		return 0;
	return errno ? -errno : 1;
}

static bool is_weights(const char *name)
{
	static const char *const ends[] = {".safetensors", ".gguf"};
	size_t n = strlen(name);

	for (size_t i = 0; i < sizeof(ends) / sizeof(*ends); i++)
		if (n > strlen(ends[i]) && !strcmp(name + n - strlen(ends[i]), ends[i]))
			return true;
	return false;
}

static bool has_weights(int fd, unsigned depth)
{
	cleanup(closedirp) DIR *dir = contents_list(fd);
	const struct dirent *entry;

	while (dir && (entry = next_entry(dir))) {
		cleanup(fd_closep) int below = -1;

		if (is_weights(entry->d_name))
			return true;
		if (depth == 0)
			continue;
		below = openat(fd, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (below >= 0 && has_weights(below, depth - 1))
			return true;
	}
	return false;
}

bool contents_has_weights(int fd)
{
	return has_weights(fd, 1);
}

int contents_sync(int fd)
{
	cleanup(closedirp) DIR *dir = contents_list(fd);
	const struct dirent *entry;
	int r = dir ? 0 : -errno;

	while (r == 0 && (entry = next_entry(dir))) {
		cleanup(fd_closep) int below = -1;

		if (entry->d_type == DT_REG)
			continue;
		below = openat(fd, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (below >= 0)
			r = contents_sync(below);
	}
	if (r == 0 && fsync(fd) < 0)
		r = -errno;
	return r;
}

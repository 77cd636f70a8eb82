#include "server/sync/record.h"

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

#define NAME "record.json"
#define NAME_NEW "record.json.new"

static int open_folder(const char *folder, int *ret)
{
	int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0 && errno == ENOENT && mkdir(folder, 0700) == 0)
		fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	*ret = fd;
	return 0;
}

/* What is found out here at the start would else be found out in the middle of a commit. */
static int check_writable(int folder)
{
	int fd = openat(folder, NAME_NEW, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);

	if (fd < 0)
		return -errno;
	(void)fd_close(fd);
	return unlinkat(folder, NAME_NEW, 0) < 0 ? -errno : 0;
}

int record_lock(const char *folder, int *ret_fd, char why[WHY_SIZE])
{
	cleanup(fd_closep) int fd = -1;
	struct stat st;
	int r = open_folder(folder, &fd);

	if (r == 0 && fstat(fd, &st) < 0)
		r = -errno;
	if (r < 0) {
		(void)snprintf(why, WHY_SIZE, "[node] state (%.300s) cannot be used: %s", folder,
			       strerror(-r));
		return r;
	}
	if (st.st_mode & (S_IWGRP | S_IWOTH)) {
		(void)snprintf(why, WHY_SIZE,
			       "[node] state (%.200s): others than its owner may write there (chmod 700 "
			       "%.200s)",
			       folder, folder);
		return -EPERM;
	}
	if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
		(void)snprintf(why, WHY_SIZE,
			       "another weightd-sync keeps its record in %.250s; stop it, or give this "
			       "one another [node] state",
			       folder);
		return -EBUSY;
	}
	*ret_fd = take_fd(fd);
	return 0;
}

int record_load(const char *folder, json_t **ret, char why[WHY_SIZE])
{
	cleanup(fd_closep) int folder_fd = -1;
	cleanup(fd_closep) int fd = -1;
	json_error_t error;
	json_t *record;
	int r = open_folder(folder, &folder_fd);

	if (r == 0)
		r = check_writable(folder_fd);
	if (r < 0) {
		(void)snprintf(
			why, WHY_SIZE,
			"%s: %s; it keeps what this node committed and has to be writable for uid %u",
			folder, strerror(-r), geteuid());
		return r;
	}
	fd = openat(folder_fd, NAME, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	if (fd < 0 && errno == ENOENT) {
		*ret = NULL;
		return 0;
	}
	if (fd < 0) {
		r = -errno;
		(void)snprintf(why, WHY_SIZE, "%s/" NAME ": %s", folder, strerror(-r));
		return r;
	}
	record = json_loadfd(fd, JSON_REJECT_DUPLICATES, &error);
	if (record) {
		*ret = record;
		return 0;
	}
	(void)snprintf(why, WHY_SIZE,
		       "%s/" NAME
		       ": line %d: %s; bring back a copy, or move the file away: this node then "
		       "knows of no version, and takes the group's from the others",
		       folder, error.line, error.text);
	return -EBADMSG;
}

static int write_whole(int folder, const json_t *record)
{
	cleanup(fd_closep) int fd = openat(folder, NAME_NEW,
					   O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW,
					   0600);

	char *text;
	int r;

	if (fd < 0)
		return -errno;
	/* json_dumpfd() writes each word by itself. */
	text = json_dumps(record, JSON_INDENT(1) | JSON_SORT_KEYS);
	if (!text)
		return -ENOMEM;
	r = fd_write_all(fd, text, strlen(text));
	free(text);
	if (r < 0)
		return r;
	return fsync(fd) < 0 ? -errno : 0;
}

int record_save(const char *folder, const json_t *record)
{
	cleanup(fd_closep) int folder_fd = -1;
	int r = open_folder(folder, &folder_fd);

	if (r == 0)
		r = write_whole(folder_fd, record);
	if (r == 0 && renameat(folder_fd, NAME_NEW, folder_fd, NAME) < 0)
		r = -errno;
	if (r == 0 && fsync(folder_fd) < 0)
		r = -errno;
	return r;
}

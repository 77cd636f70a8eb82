/*
 * Each piece is a line: the checksum of its JSON, a space, and that. What was not written whole is shorter, or its
 * checksum is another. A write that failed is taken back.
 */
#include "server/sync/commit_log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/hash.h"
#include "server/sync/base/json_fields.h"
#include "server/sync/base/json_packet.h"

#define NAME "record"
#define NAME_NEW "record.new"
#define GROWTH (16 << 10) /* bytes that another version makes of it, and more */
#define SMALL (64 << 10) /* so large it may be, however little it says */
#define SUM_SIZE (2 * HASH_SIZE + 1) /* the digits before a piece, with the space */

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

/* Root's is fine: it may have brought back a copy. */
static bool is_of_others(const struct stat *st)
{
	return st->st_uid != geteuid() && st->st_uid != 0;
}

/* Never what is there, which may be a link to another file, or a pipe that nobody reads. */
static int open_new(int folder, int *ret)
{
	int fd;

	if (unlinkat(folder, NAME_NEW, 0) < 0 && errno != ENOENT)
		return -errno;
	fd = openat(folder, NAME_NEW, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	*ret = fd;
	return 0;
}

/* An error here would else come in the middle of a commit. `size` may be 0. */
static int check_writable(int folder, off_t size)
{
	int fd = -1, r = open_new(folder, &fd);

	if (r < 0)
		return r;
	if (size)
		r = -posix_fallocate(fd, 0, size);
	(void)fd_close(fd);
	return unlinkat(folder, NAME_NEW, 0) < 0 && r == 0 ? -errno : r;
}

int commit_log_lock(const char *folder, int *ret_fd, char why[WHY_SIZE])
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
	if (is_of_others(&st)) {
		(void)snprintf(why, WHY_SIZE,
			       "[node] state (%.200s) belongs to uid %u, who may write what this node "
			       "believes (chown %u %.200s)",
			       folder, st.st_uid, geteuid(), folder);
		return -EPERM;
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

/* --- Reading ------------------------------------------------------------------------------------ */

static void commit_log_sum(const char *text, size_t size, char ret[SUM_SIZE])
{
	uint8_t hash[HASH_SIZE];

	hash128(text, size, hash);
	(void)field_hex(hash, sizeof(hash), ret);
}

static bool is_whole(const char *line, size_t size)
{
	char digits[SUM_SIZE];

	if (size <= SUM_SIZE || line[size - 1] != '\n' || line[SUM_SIZE - 1] != ' ')
		return false;
	commit_log_sum(line + SUM_SIZE, size - SUM_SIZE - 1, digits);
	return memcmp(line, digits, SUM_SIZE - 1) == 0;
}

static int commit_log_parse(const char *line, size_t size, json_t *pieces)
{
	return json_array_append_new(pieces, json_loadb(line + SUM_SIZE, size - SUM_SIZE - 1,
							JSON_REJECT_DUPLICATES, NULL));
}

static uint64_t size_max(uint64_t size_of_all)
{
	return size_of_all < SMALL / 2 ? SMALL : 2 * size_of_all;
}

/* -EBADMSG with the line: something good is behind it, or nothing before. */
static int read_pieces(struct commit_log *r, FILE *file, json_t **ret, unsigned *ret_line)
{
	cleanup(json_freep) json_t *pieces = json_array();
	unsigned n = 0, bad = 0;
	char *line = NULL;
	size_t room = 0;
	ssize_t size;

	while ((size = getline(&line, &room, file)) > 0) {
		n++;
		if (!is_whole(line, (size_t)size)) {
			bad = bad ? bad : n;
			r->n_torn += (uint64_t)size;
			continue;
		}
		if (bad || commit_log_parse(line, (size_t)size, pieces) < 0)
			break;
		r->size += (uint64_t)size;
		r->size_max = n == 1 ? size_max(r->size) : r->size_max;
	}
	free(line);
	if (size < 0 && !feof(file))
		return -EIO;
	*ret_line = bad ? bad : n ? n : 1;
	if (!json_array_size(pieces) || size > 0)
		return -EBADMSG;
	if (bad)
		r->size_max = 0;
	*ret = take_ptr(pieces);
	return 0;
}

static int open_record(struct commit_log *r, FILE **ret, char why[WHY_SIZE])
{
	cleanup(fd_closep) int folder_fd = -1;
	cleanup(fd_closep) int fd = -1;
	struct stat st;
	int res = open_folder(r->folder, &folder_fd);

	if (res == 0)
		res = check_writable(folder_fd, 0);
	if (res < 0) {
		(void)snprintf(
			why, WHY_SIZE,
			"%s: %s; it keeps what this node committed and has to be writable for uid %u",
			r->folder, strerror(-res), geteuid());
		return res;
	}
	/* A pipe must not make it wait. */
	fd = openat(folder_fd, NAME, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0 && errno == ENOENT) {
		*ret = NULL;
		return 0;
	}
	if (fd < 0 || fstat(fd, &st) < 0) {
		res = -errno;
		(void)snprintf(why, WHY_SIZE, "%s/" NAME ": %s", r->folder, strerror(-res));
		return res;
	}
	if (!S_ISREG(st.st_mode) || is_of_others(&st)) {
		(void)snprintf(
			why, WHY_SIZE,
			S_ISREG(st.st_mode)
				? "%s/" NAME
				  " belongs to uid %u, and so is no record of this node; remove it"
				: "%s/" NAME " of uid %u is no file, and so no record; remove it",
			r->folder, st.st_uid);
		return -EPERM;
	}
	*ret = fdopen(fd, "r");
	if (!*ret) {
		(void)snprintf(why, WHY_SIZE, "out of memory");
		return -ENOMEM;
	}
	(void)take_fd(fd);
	return 0;
}

int commit_log_load(struct commit_log *r, json_t **ret, char why[WHY_SIZE])
{
	unsigned line = 0;
	FILE *file = NULL;
	int res = open_record(r, &file, why);

	*ret = NULL;
	if (res < 0 || !file)
		return res;
	res = read_pieces(r, file, ret, &line);
	(void)fclose(file);
	if (res == -EBADMSG)
		(void)snprintf(why, WHY_SIZE,
			       "%s/" NAME ": line %u is damaged; bring back a copy, or move the file "
			       "away: this node then knows of no version, and takes the group's from "
			       "the others",
			       r->folder, line);
	else if (res < 0)
		(void)snprintf(why, WHY_SIZE, "%s/" NAME ": %s", r->folder, strerror(-res));
	return res;
}

/* --- Writing ------------------------------------------------------------------------------------ */

static bool needs_all(const struct commit_log *r, uint64_t more)
{
	return r->size + more > r->size_max;
}

int commit_log_may_save(const struct commit_log *r, char why[WHY_SIZE])
{
	cleanup(fd_closep) int folder_fd = -1;
	int res = open_folder(r->folder, &folder_fd);

	if (res == 0)
		res = check_writable(folder_fd,
				     (off_t)(needs_all(r, GROWTH) ? r->size + GROWTH : GROWTH));
	if (res < 0)
		(void)snprintf(why, WHY_SIZE,
			       "its commit log cannot be written to %.300s: %s; make room there",
			       r->folder, strerror(-res));
	return res;
}

static int commit_log_format(const json_t *piece, char **ret_line, size_t *ret_size)
{
	char *text = json_dumps(piece, JSON_COMPACT | JSON_SORT_KEYS), digits[SUM_SIZE];
	int n;

	if (!text)
		return -ENOMEM;
	commit_log_sum(text, strlen(text), digits);
	n = asprintf(ret_line, "%s %s\n", digits, text);
	free(text);
	*ret_size = (size_t)n;
	return n < 0 ? -ENOMEM : 0;
}

/*
 * SAVE_ALL, too, where the file is not the one that we left. After a failure of the disk itself nobody knows what is on
 * it, and to ask again is answered with success: then another file is written.
 */
static int commit_log_append(struct commit_log *r, int folder, const char *line, size_t size)
{
	cleanup(fd_closep) int fd =
		openat(folder, NAME, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	struct stat st;
	int res;

	if (needs_all(r, size) || fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) ||
	    (uint64_t)st.st_size != r->size)
		return SAVE_ALL;
	res = fd_write_all(fd, line, size);
	if (res == 0 && fdatasync(fd) < 0) {
		res = -errno;
		r->size_max = 0;
	}
	if (res == 0)
		r->size += size;
	else if (ftruncate(fd, st.st_size) < 0)
		r->size_max = 0;
	return res;
}

/* There is the old file or the new one, whenever it ends. */
static int commit_log_replace(struct commit_log *r, int folder, const char *line, size_t size)
{
	cleanup(fd_closep) int fd = -1;
	int res = open_new(folder, &fd);

	r->size_max = 0;
	if (res == 0)
		res = fd_write_all(fd, line, size);
	if (res == 0 && fdatasync(fd) < 0)
		res = -errno;
	if (res == 0 && renameat(folder, NAME_NEW, folder, NAME) < 0)
		res = -errno;
	if (res == 0 && fsync(folder) < 0)
		res = -errno;
	if (res < 0)
		return res;
	r->size = size;
	r->size_max = size_max(size);
	return 0;
}

int commit_log_save(struct commit_log *r, const json_t *piece, bool is_all)
{
	cleanup(fd_closep) int folder_fd = -1;
	char *line = NULL;
	size_t size;
	int res = open_folder(r->folder, &folder_fd);

	if (res == 0)
		res = commit_log_format(piece, &line, &size);
	if (res == 0)
		res = is_all ? commit_log_replace(r, folder_fd, line, size)
			     : commit_log_append(r, folder_fd, line, size);
	free(line);
	return res;
}

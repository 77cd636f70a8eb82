/*
 * Files written atomically: complete or missing, with the requested mode, and replacing another file only on
 * request
 */
#pragma once

#include <sys/types.h>

struct atomic_file {
	int dir_fd;
	const char *name;
	char temporary[300]; /* "": nothing to remove */
};

/* Writes `text` to a temporary file in the folder, down to the disk. A negative errno leaves nothing. */
int atomic_file_write(int dir_fd, const char *name, mode_t mode, const char *text,
		      struct atomic_file *ret);
/* Gives it its name. -EEXIST: something has that name. */
int atomic_file_keep(struct atomic_file *f);
/* The same in the place of another, if there is one. Readers see either. */
int atomic_file_replace(struct atomic_file *f);
/* Writes all of it to `path`, the argument of --output: 0, or EXIT_FAILED after printing why. */
int atomic_file_output(const char *path, const char *text);
/* Removes what was not kept. */
void atomic_file_deinit(struct atomic_file *f);

/* The folder, made for its owner alone if it is not there. The descriptor or a negative errno. */
int atomic_file_folder(const char *path);

/* The text of a regular file of at most `max` bytes and its mode; the caller frees it. -EINVAL: no such file. */
int atomic_file_read(int dir_fd, const char *name, size_t max, char **ret, mode_t *ret_mode);

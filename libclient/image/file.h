/*
 * Input files
 *
 * A file to load from, its descriptor, and its identity when it was opened. A remote file has functions in place of a
 * descriptor, and of its identity the size; each read of it fails if it is not the file that was opened. A proper save of a checkpoint renames a
 * new file over the old one. Writing into the old one during a load would yield a mix of both, so each file is
 * checked again after its last byte was read.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "libclient/connection/sentence.h"

/* Attributes that change when a file is written, cut, replaced or given another owner. */
struct file_identity {
	dev_t dev;
	ino_t ino;
	uint64_t size;
	struct timespec mtime;
	struct timespec ctime;
};

struct remote {
	const struct remote_kind *kind;
};

struct remote_kind {
	/* As file_read(); of several threads at once. */
	int (*read)(struct remote *r, void *buffer, uint64_t size, uint64_t offset,
		    struct sentence *s);
	void (*close)(struct remote *r);
};

struct file {
	char *path;
	int fd;
	bool is_directory;
	struct file_identity identity;
	struct remote *remote; /* NULL: it has a descriptor */
};

#define FILE_INIT                                                                                  \
	{                                                                                          \
		.fd = -1                                                                           \
	}

/* Opens a regular file or a directory, and nothing else; never blocks on a FIFO or a device. */
int file_open(const char *path, struct file *ret, struct sentence *s);
void file_deinit(struct file *f);

/* Reads all of the range; its end before the file's end is an error too. */
int file_read(const struct file *f, void *buffer, uint64_t size, uint64_t offset,
	      struct sentence *s);

/* The file, and what its path leads to, are what they were. -EBADMSG otherwise. */
int file_check_unchanged(const struct file *f, struct sentence *s);

/* Sets the sentence of a failed read: `r` is the error of the system call, 0 for a premature end. */
int file_read_failed(const struct file *f, uint64_t offset, int r, struct sentence *s);

/* The path in quotes; a long one loses its beginning, because its end is more specific. Returns q->text. */
const char *file_quote(struct quote *q, const char *path);

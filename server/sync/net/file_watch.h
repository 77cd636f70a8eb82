/*
 * File watch
 *
 * Reports that a file was changed: written, renamed over, or with new rights. Related files are
 * written one after the other, so they are reported together, a moment later.
 */
#pragma once

#include <sys/stat.h>

#include "server/base/loop.h"

#define FILE_WATCH_MAX 5

struct file_watch {
	struct loop *loop;
	struct source source; /* inotify */
	struct timer settle;
	struct watched_file {
		const char *path; /* borrowed */
		struct stat was;
	} at[FILE_WATCH_MAX];
	unsigned n;
	/* `changed` has a bit for each file, in the order of file_watch_add(). */
	void (*on_change)(void *userdata, unsigned changed);
	void *userdata;
};

/*
 * Without it, a `source.fd` of -1 and an initialized timer are enough for file_watch_deinit().
 * -errno.
 */
int file_watch_init(struct file_watch *f, struct loop *loop,
		    void (*on_change)(void *userdata, unsigned changed), void *userdata);
void file_watch_deinit(struct file_watch *f);

/* Watches a file from now on. -errno: its folder cannot be watched. */
int file_watch_add(struct file_watch *f, const char *path);

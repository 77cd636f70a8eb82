/*
 * File watch
 *
 * Tells when one of some files is another one than before: written anew, renamed over, or given other rights. What
 * belongs together is written one after the other, so that is told a moment later, at once.
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
	/* `changed` has a bit for each, in the order in which they were added. */
	void (*on_change)(void *userdata, unsigned changed);
	void *userdata;
};

/* Before it, a `source.fd` of -1 and a timer that is set are enough for file_watch_deinit(). -errno. */
int file_watch_init(struct file_watch *f, struct loop *loop,
		    void (*on_change)(void *userdata, unsigned changed), void *userdata);
void file_watch_deinit(struct file_watch *f);

/* From now on. -errno: its folder cannot be watched. */
int file_watch_add(struct file_watch *f, const char *path);

/*
 * Files
 *
 * Tells when one of some files is another one than before: written anew, renamed over, or given other rights. What
 * belongs together is written one after the other, so that is told a moment later, at once.
 */
#pragma once

#include <sys/stat.h>

#include "server/base/loop.h"

#define FILES_MAX 5

struct files {
	struct loop *loop;
	struct source source; /* inotify */
	struct timer settle;
	struct file {
		const char *path; /* borrowed */
		struct stat was;
	} at[FILES_MAX];
	unsigned n;
	/* `changed` has a bit for each, in the order in which they were added. */
	void (*on_change)(void *userdata, unsigned changed);
	void *userdata;
};

/* Before it, a `source.fd` of -1 and a timer that is set are enough for files_deinit(). -errno. */
int files_init(struct files *f, struct loop *loop,
	       void (*on_change)(void *userdata, unsigned changed), void *userdata);
void files_deinit(struct files *f);

/* From now on. -errno: its folder cannot be watched. */
int files_add(struct files *f, const char *path);

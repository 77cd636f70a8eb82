/*
 * Folders are watched, since inotify reports a renamed file there. On each event all files are
 * checked, because any of them may be a link through any of these folders. If a folder was
 * replaced, the new one is watched.
 */
#include "server/sync/net/file_watch.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "ipc/base/num.h"

#define SETTLE_NS 250000000u
#define FOLDER_EVENTS                                                                              \
	(IN_CLOSE_WRITE | IN_MOVED_TO | IN_CREATE | IN_ATTRIB | IN_MOVE_SELF | IN_DELETE_SELF)

static int watch_folder(const struct file_watch *f, const char *path)
{
	const char *slash = strrchr(path, '/');
	char folder[PATH_MAX];
	size_t size = slash ? (size_t)(slash - path) + 1 : 2;

	if (size >= sizeof(folder))
		return -ENAMETOOLONG;
	(void)snprintf(folder, sizeof(folder), "%.*s", (int)size, slash ? path : "./");
	/* A folder that is watched already stays so. */
	return inotify_add_watch(f->source.fd, folder, FOLDER_EVENTS) < 0 ? -errno : 0;
}

static bool is_another(const struct stat *x, const struct stat *y)
{
	return x->st_dev != y->st_dev || x->st_ino != y->st_ino || x->st_size != y->st_size ||
	       x->st_ctim.tv_sec != y->st_ctim.tv_sec || x->st_ctim.tv_nsec != y->st_ctim.tv_nsec;
}

static void file_watch_on_settled(struct timer *timer)
{
	struct file_watch *f = container_of(timer, struct file_watch, settle);
	unsigned changed = 0;

	for (unsigned i = 0; i < f->n; i++) {
		struct stat is;

		(void)watch_folder(f, f->at[i].path); /* a removed one sends no events */
		if (stat(f->at[i].path, &is) < 0 || !is_another(&is, &f->at[i].was))
			continue; /* a replacement is about to follow */
		f->at[i].was = is;
		changed |= 1u << i;
	}
	if (changed)
		f->on_change(f->userdata, changed);
}

static void file_watch_on_event(struct source *source, uint32_t events)
{
	struct file_watch *f = container_of(source, struct file_watch, source);
	char ignored[4096];

	(void)events;
	while (read(source->fd, ignored, sizeof(ignored)) > 0)
		;
	timer_start_once(f->loop, &f->settle, SETTLE_NS);
}

int file_watch_init(struct file_watch *f, struct loop *loop,
		    void (*on_change)(void *userdata, unsigned changed), void *userdata)
{
	int fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC), r;

	*f = (struct file_watch){
		.loop = loop, .source.fd = fd, .on_change = on_change, .userdata = userdata};
	timer_init(&f->settle, file_watch_on_settled);
	r = fd < 0 ? -errno : loop_add(loop, &f->source, fd, EPOLLIN, file_watch_on_event);
	if (r < 0)
		f->source.fd = fd_close(fd);
	return r;
}

void file_watch_deinit(struct file_watch *f)
{
	timer_stop(&f->settle);
	loop_remove(&f->source);
	f->source.fd = fd_close(f->source.fd);
}

int file_watch_add(struct file_watch *f, const char *path)
{
	struct watched_file *file = &f->at[f->n];

	assert(f->n < FILE_WATCH_MAX);
	*file = (struct watched_file){.path = path};
	(void)stat(path, &file->was); /* a later file differs from a missing one */
	f->n++;
	return watch_folder(f, path);
}

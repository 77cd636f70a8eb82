#include "libclient/connection/folder.h"

#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"

int folder_watch(int watch, const char *path)
{
	const char *slash = strrchr(path, '/');
	size_t n = slash ? (size_t)(slash - path) : 0;
	cleanup(freep) char *folder = slash ? strndup(path, n ? n : 1) : strdup(".");

	if (watch < 0)
		watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	if (watch >= 0 && folder)
		(void)inotify_add_watch(watch, folder,
					IN_CREATE | IN_DELETE | IN_MOVED_TO | IN_ATTRIB);
	return watch;
}

bool folder_wait(int watch, int timeout_ms)
{
	char events[4096] __attribute__((aligned(8)));
	struct pollfd p = {.fd = watch, .events = POLLIN};

	return poll(&p, 1, timeout_ms) > 0 && read(watch, events, sizeof(events)) > 0;
}

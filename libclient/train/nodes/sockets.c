#include "libclient/train/nodes/sockets.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libclient/train/plan/sentence.h"

/* The number of one that is closed may be that of another file: the inode is not. */
struct held {
	int fd;
	ino_t inode;
};

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* protects the others */
static struct held *list;
static size_t n_held;

/*
 * Looks by the name, as another thread may close the number, or reuse it: either answer is right. Without /proc it has no
 * name.
 */
static bool is_open(const struct held *h)
{
	char path[32];
	struct stat st;

	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", h->fd);
	return (stat(path, &st) == 0 ||
		(access("/proc/self/fd", F_OK) < 0 && fstat(h->fd, &st) == 0)) &&
	       S_ISSOCK(st.st_mode) && st.st_ino == h->inode;
}

static void fork_begins(void)
{
	(void)pthread_mutex_lock(&mutex);
}

static void fork_ends(void)
{
	(void)pthread_mutex_unlock(&mutex);
}

static void fork_ends_in_child(void)
{
	for (size_t i = 0; i < n_held; i++)
		if (is_open(&list[i]))
			(void)close(list[i].fd);
	n_held = 0;
	fork_ends();
}

static void init(void)
{
	(void)pthread_atfork(fork_begins, fork_ends, fork_ends_in_child);
}

static void forget_closed(void)
{
	size_t n = 0;

	for (size_t i = 0; i < n_held; i++)
		if (is_open(&list[i]))
			list[n++] = list[i];
	n_held = n;
}

int sockets_add(int fd)
{
	struct held *longer;
	struct stat st;
	int r = 0;

	if (fstat(fd, &st) < 0)
		return train_fail(-errno, "cannot look at a socket: %m");
	(void)pthread_once(&once, init);
	(void)pthread_mutex_lock(&mutex);
	forget_closed();
	longer = realloc(list, (n_held + 1) * sizeof(*list));
	if (longer) {
		list = longer;
		list[n_held++] = (struct held){.fd = fd, .inode = st.st_ino};
	} else {
		r = train_out_of_memory();
	}
	(void)pthread_mutex_unlock(&mutex);
	return r;
}

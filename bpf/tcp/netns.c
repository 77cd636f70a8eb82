/*
 * A descriptor keeps a namespace alive, so that it is closed as soon as no connection was seen there.
 */
#include "bpf/tcp/netns.h"

#include <assert.h>
#include <bpf/bpf.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bpf/tcp/meter.bpf.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"

#define NAMED "/run/netns" /* as ip(8) has them */
#define PATH_SIZE 512

static void dir_closep(DIR **dir)
{
	if (*dir)
		(void)closedir(*dir);
}

static bool is_it(const struct netns_list *n, const char *path, uint32_t inode)
{
	struct stat st;

	return stat(path, &st) == 0 && st.st_dev == n->dev && st.st_ino == inode;
}

/* Opens the entry of a folder, or the file below an entry, that is this namespace; -1: there is none. */
static int find_in(const struct netns_list *n, const char *folder, const char *below, uint32_t inode)
{
	cleanup(dir_closep) DIR *dir = opendir(folder);
	char path[PATH_SIZE];
	const struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		(void)snprintf(path, sizeof(path), "%s/%s%s", folder, entry->d_name, below);
		if (is_it(n, path, inode))
			return open(path, O_RDONLY | O_CLOEXEC);
	}
	return -1;
}

static void netns_free(struct netns *one)
{
	(void)fd_close(one->fd);
	list_remove(&one->link);
	free(one);
}

static struct netns *netns_find(const struct netns_list *n, uint32_t inode)
{
	struct netns *one;

	list_for_each(one, &n->all, link)
		if (one->inode == inode)
			return one;
	return NULL;
}

/* Takes `fd`; -1: closed. NULL: out of memory. */
static struct netns *netns_add(struct netns_list *n, uint32_t inode, int fd)
{
	struct netns *one = malloc(sizeof(*one));

	if (!one) {
		(void)fd_close(fd);
		return NULL;
	}
	*one = (struct netns){.inode = inode, .fd = fd};
	list_append(&n->all, &one->link);
	return one;
}

void netns_list_init(struct netns_list *n)
{
	*n = (struct netns_list){.own_fd = -1};
	list_init(&n->all);
}

int netns_list_open(struct netns_list *n)
{
	struct stat st;

	n->own_fd = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
	if (n->own_fd < 0 || fstat(n->own_fd, &st) < 0)
		return -errno;
	n->own = (uint32_t)st.st_ino;
	n->dev = st.st_dev;
	return 0;
}

void netns_list_clear(struct netns_list *n)
{
	struct netns *one, *next;

	list_for_each_safe(one, next, &n->all, link)
		netns_free(one);
}

void netns_list_deinit(struct netns_list *n)
{
	netns_list_clear(n);
	n->own_fd = fd_close(n->own_fd);
}

int netns_list_find_socket(struct netns_list *n, int fd, struct netns **ret)
{
	cleanup(fd_closep) int namespace_fd = ioctl(fd, SIOCGSKNS);
	struct netns *one;
	struct stat st;

	*ret = NULL;
	/* It is unknown without CAP_NET_ADMIN there. */
	if (namespace_fd < 0 || fstat(namespace_fd, &st) < 0 || st.st_ino == n->own)
		return 0;
	one = netns_find(n, (uint32_t)st.st_ino);
	if (one && one->fd < 0)
		one->fd = take_fd(namespace_fd);
	*ret = one ? one : netns_add(n, (uint32_t)st.st_ino, take_fd(namespace_fd));
	return *ret ? 0 : -ENOMEM;
}

/* Deletes it, unless a connection was noted there meanwhile. */
static bool netns_forget(int map_fd, uint32_t inode, uint32_t last)
{
	uint32_t look;

	if (bpf_map_lookup_and_delete_elem(map_fd, &inode, &look) < 0)
		return true;
	if (look < last)
		return true;
	(void)bpf_map_update_elem(map_fd, &inode, &look, BPF_NOEXIST); /* or it is noted again */
	return false;
}

int netns_list_update(struct netns_list *n, int map_fd, uint32_t last)
{
	struct netns *one, *next;
	uint32_t inodes[NAMESPACES_MAX], look;
	size_t n_inodes = 0;
	int r = 0;

	for (const uint32_t *key = NULL;
	     n_inodes < NAMESPACES_MAX && bpf_map_get_next_key(map_fd, key, &inodes[n_inodes]) == 0;
	     key = &inodes[n_inodes++])
		;
	list_for_each_safe(one, next, &n->all, link)
		if (bpf_map_lookup_elem(map_fd, &one->inode, &look) < 0)
			netns_free(one);
	for (size_t i = 0; i < n_inodes && r == 0; i++) {
		uint32_t inode = inodes[i];
		int fd;

		one = netns_find(n, inode);
		if (bpf_map_lookup_elem(map_fd, &inode, &look) == 0 && look < last &&
		    netns_forget(map_fd, inode, last)) {
			if (one)
				netns_free(one);
			continue;
		}
		if (one || inode == n->own)
			continue;
		fd = find_in(n, NAMED, "", inode);
		if (!netns_add(n, inode, fd >= 0 ? fd : find_in(n, "/proc", "/ns/net", inode)))
			r = -ENOMEM;
	}
	return r;
}

int netns_enter(struct netns *one)
{
	int r = setns(one->fd, CLONE_NEWNET) < 0 ? -errno : 0;

	if (r < 0)
		one->fd = fd_close(one->fd);
	return r;
}

void netns_leave(const struct netns_list *n)
{
	int r = setns(n->own_fd, CLONE_NEWNET);

	assert(r == 0); /* the rights that let it enter another namespace let it return */
}

/*
 * Network namespaces that have sockets which are followed
 *
 * TCP's own iterator visits one namespace, that of the thread which opens it. So the collector keeps a descriptor of each
 * namespace in which the last look saw a connection. It drops the others, as a descriptor keeps a namespace alive. To
 * enter another namespace takes CAP_SYS_ADMIN. A namespace that cannot be entered or found is closed.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "ipc/base/list.h"

struct netns_list {
	struct list all; /* struct netns; ours is none of them */
	int own_fd;
	uint32_t own; /* its inode */
	dev_t dev; /* device of the inodes of all of them */
};

struct netns {
	struct list link; /* netns_list::all */
	uint32_t inode;
	int fd; /* -1: closed */
};

void netns_list_init(struct netns_list *n);
/* 0, or negative errno: our own is unknown. */
int netns_list_open(struct netns_list *n);
void netns_list_deinit(struct netns_list *n);
/* Nothing is followed any more. */
void netns_list_clear(struct netns_list *n);

/*
 * Finds the namespace of a socket, which may have no process and no name. NULL: it is ours, or unknown. 0, or -ENOMEM.
 */
int netns_list_find_socket(struct netns_list *n, int fd, struct netns **ret);

/*
 * Follows a map of the programs, from inodes to the look that saw a connection there last: drops namespaces in which look
 * `last` saw none. 0, or -ENOMEM.
 */
int netns_list_update(struct netns_list *n, int map_fd, uint32_t last);

/* Moves this thread there until netns_leave(). 0, or negative errno: the namespace is closed from then on. */
int netns_enter(struct netns *one);
void netns_leave(const struct netns_list *n);

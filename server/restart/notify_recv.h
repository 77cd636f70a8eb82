/*
 * Messages of sd_notify, received
 *
 * A daemon sends its state to its parent by sd_notify(3): datagrams of lines with descriptors, and
 * the sender's credentials from the kernel. This is the receiving end; notify.h is the sending one.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>
#include <sys/un.h>

#include "server/restart/fdstore_entry.h"

#define NOTIFY_FDS_MAX 253 /* the kernel's SCM_MAX_FD */

enum notify_word {
	NOTIFY_READY = 1 << 0,
	NOTIFY_STOPPING = 1 << 1,
	NOTIFY_WATCHDOG = 1 << 2,
	NOTIFY_STORE = 1 << 3,
	NOTIFY_REMOVE = 1 << 4,
	NOTIFY_BARRIER = 1 << 5,
};

struct notify_message {
	pid_t pid; /* the sender, which may have exited; 0: in a pid namespace that is not ours */
	unsigned words; /* NOTIFY_* */
	char name[FDSTORE_NAME_MAX + 1]; /* FDNAME=; empty when there is none, or a wrong one */
	bool is_whole; /* neither lines nor descriptors were lost on the way */
	unsigned n_fds;
	int fds[NOTIFY_FDS_MAX]; /* ascending, as the kernel takes the lowest free numbers */
};

struct notify_socket {
	int fd;
	char address[sizeof(((struct sockaddr_un *)0)->sun_path)]; /* as in $NOTIFY_SOCKET */
};

int notify_socket_init(struct notify_socket *s);
void notify_socket_deinit(struct notify_socket *s);

/* The next one, without waiting. -EAGAIN. */
int notify_recv(int fd, struct notify_message *ret);
/* Closes the descriptors that were not taken out. */
void notify_message_deinit(struct notify_message *n);

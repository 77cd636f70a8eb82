/*
 * Notices
 *
 * What a daemon tells who started it, as sd_notify(3) sends it: a datagram of lines with descriptors, and
 * the kernel's word on who sent it. This is the end that hears; notify.h is the one that speaks.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>
#include <sys/un.h>

#include "server/keepsake.h"

#define NOTICE_FDS_MAX 253 /* the kernel's SCM_MAX_FD */

enum notice_word {
	NOTICE_READY = 1 << 0,
	NOTICE_STOPPING = 1 << 1,
	NOTICE_WATCHDOG = 1 << 2,
	NOTICE_STORE = 1 << 3,
	NOTICE_REMOVE = 1 << 4,
	NOTICE_BARRIER = 1 << 5,
};

struct notice {
	pid_t pid; /* of the sender, who may be gone; 0: in a pid namespace that is not ours */
	unsigned words; /* NOTICE_* */
	char name[KEEPSAKE_NAME_MAX + 1]; /* FDNAME=; empty when there is none, or a wrong one */
	bool is_whole; /* neither lines nor descriptors were lost on the way */
	unsigned n_fds;
	int fds[NOTICE_FDS_MAX]; /* ascending, as the kernel takes the lowest free numbers */
};

struct notice_socket {
	int fd;
	char address[sizeof(((struct sockaddr_un *)0)->sun_path)]; /* as in $NOTIFY_SOCKET */
};

int notice_socket_init(struct notice_socket *s);
void notice_socket_deinit(struct notice_socket *s);

/* The next one, without waiting. -EAGAIN. */
int notice_receive(int fd, struct notice *ret);
/* Closes the descriptors that were not taken out. */
void notice_deinit(struct notice *n);

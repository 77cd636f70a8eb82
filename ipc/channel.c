#include "ipc/channel.h"

#include <errno.h>
#include <linux/sockios.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"

#ifndef SO_PEERGROUPS
#define SO_PEERGROUPS 59
#endif

#define DROPPED_MAX 8 /* packets that a socket to be closed may cost */

/* Takes all descriptors out of the control data. */
static int collect_fds(struct msghdr *msg, struct channel_packet *p)
{
	int r = msg->msg_flags & MSG_CTRUNC ? -EMFILE : 0;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < n; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
			assert(p->n_fds <
			       CHANNEL_FDS_MAX); /* the control buffer has no room for more */
			p->fds[p->n_fds++] = fd;
		}
	}
	return r;
}

int channel_receive(int fd, int flags, struct channel_packet *ret)
{
	char control[CMSG_SPACE(sizeof(int) * CHANNEL_FDS_MAX)] __attribute__((aligned(8)));
	struct iovec iov = {.iov_base = ret->data, .iov_len = sizeof(ret->data)};
	struct msghdr msg = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control),
	};
	ssize_t n;
	int r;

	ret->size = 0;
	ret->n_fds = 0;
	/*
	 * A peer that closed before it read everything causes one ECONNRESET, ahead of its packets and of the
	 * end.
	 */
	do
		n = recvmsg(fd, &msg, flags | MSG_CMSG_CLOEXEC);
	while (n < 0 && (errno == EINTR || errno == ECONNRESET));
	if (n < 0)
		return -errno;
	r = collect_fds(&msg, ret);
	if (r == 0 && msg.msg_flags & MSG_TRUNC)
		r = -EMSGSIZE;
	ret->size = (size_t)n;
	return r < 0 ? r : n > 0; /* an empty packet looks like the end; our peers send none */
}

/* Looks at the first packet that waits. Like recv(), and whether it has more than bytes. */
static ssize_t packet_peek(int fd, bool *ret_has_control)
{
	char byte;
	struct iovec iov = {.iov_base = &byte, .iov_len = sizeof(byte)};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	ssize_t n;

	do
		n = recvmsg(fd, &msg, MSG_PEEK | MSG_DONTWAIT);
	while (n < 0 &&
	       (errno == EINTR || errno == ECONNRESET)); /* a reset is reported once, before them */
	*ret_has_control = n >= 0 && msg.msg_flags & MSG_CTRUNC;
	return n;
}

/* A packet without bytes looks like the end, which alone has no credentials. */
static bool packet_is_there(int fd)
{
	const int on = 1;
	bool has_credentials;

	(void)setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)); /* cannot fail */
	(void)packet_peek(fd, &has_credentials);
	return has_credentials;
}

bool channel_may_hold_fds(int fd)
{
	for (int i = 0; i < DROPPED_MAX; i++) {
		bool has_fds;
		ssize_t n = packet_peek(fd, &has_fds);

		if (has_fds)
			return true;
		if (n <= 0)
			return n == 0 && packet_is_there(fd);
		(void)recv(fd, NULL, 0, MSG_DONTWAIT);
	}
	return true;
}

void channel_packet_deinit(struct channel_packet *p)
{
	while (p->n_fds > 0)
		(void)fd_close(p->fds[--p->n_fds]);
}

int channel_send(int fd, const void *data, size_t size, const int *fds, unsigned n_fds)
{
	char control[CMSG_SPACE(sizeof(int) * WIRE_FDS_MAX)] __attribute__((aligned(8))) = {0};
	struct iovec iov = {.iov_base = (void *)data, .iov_len = size};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	ssize_t n;

	assert(n_fds <= WIRE_FDS_MAX);
	if (n_fds > 0) {
		struct cmsghdr *c;

		msg.msg_control = control;
		msg.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);
		c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
		memcpy(CMSG_DATA(c), fds, sizeof(int) * n_fds);
	}
	do
		n = sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : 0; /* a packet is sent whole or not at all */
}

int channel_unread(int fd, size_t *ret)
{
	int n;

	if (ioctl(fd, SIOCOUTQ, &n) < 0)
		return -errno;
	*ret = (size_t)n;
	return 0;
}

static int peer_groups(int fd, struct channel_peer *p)
{
	cleanup(freep) gid_t *groups = NULL;
	socklen_t size = 0;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, NULL, &size) == 0)
		return 0; /* none */
	if (errno != ERANGE)
		return -errno;
	groups = malloc(size);
	if (!groups)
		return -ENOMEM;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &size) < 0)
		return -errno;
	p->n_groups = size / (socklen_t)sizeof(gid_t);
	p->groups = take_ptr(groups);
	return 0;
}

int channel_peer(int fd, struct channel_peer *ret)
{
	struct channel_peer p = {0};
	struct ucred cred;
	socklen_t size = sizeof(cred);
	int r;

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &size) < 0)
		return -errno;
	p.pid = cred.pid;
	p.uid = cred.uid;
	p.gid = cred.gid;
	r = peer_groups(fd, &p);
	if (r < 0)
		return r;
	*ret = p;
	return 0;
}

void channel_peer_deinit(struct channel_peer *p)
{
	free(take_ptr(p->groups));
	p->n_groups = 0;
}

int channel_address(const char *path, struct sockaddr_un *ret)
{
	size_t n = strlen(path);

	if (n == 0)
		return -EINVAL;
	if (n >= sizeof(ret->sun_path))
		return -ENAMETOOLONG;
	memset(ret, 0, sizeof(*ret));
	ret->sun_family = AF_UNIX;
	memcpy(ret->sun_path, path, n);
	return 0;
}

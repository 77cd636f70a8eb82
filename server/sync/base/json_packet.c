#include "server/sync/base/json_packet.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "ipc/base/fd.h"

int json_packet_send(int fd, const json_t *message, const int *fds, unsigned n_fds)
{
	cleanup(freep) char *text = json_dumps(message, JSON_COMPACT);
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(JSON_PACKET_FDS_MAX * sizeof(int))];
	} control = {0};
	struct iovec bytes;
	struct msghdr m = {.msg_iov = &bytes, .msg_iovlen = 1};

	if (!text)
		return -ENOMEM;
	bytes = (struct iovec){.iov_base = text, .iov_len = strlen(text)};
	if (bytes.iov_len > JSON_PACKET_SIZE_MAX || n_fds > JSON_PACKET_FDS_MAX)
		return -EMSGSIZE;
	if (n_fds > 0) {
		control.header.cmsg_level = SOL_SOCKET;
		control.header.cmsg_type = SCM_RIGHTS;
		control.header.cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		memcpy(CMSG_DATA(&control.header), fds, n_fds * sizeof(int));
		m.msg_control = &control;
		m.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
	}
	return sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? -errno : 0;
}

int json_packet_send_wait(int fd, const json_t *message, const int *fds, unsigned n_fds)
{
	struct pollfd p = {.fd = fd, .events = POLLOUT};
	int r;

	while ((r = json_packet_send(fd, message, fds, n_fds)) == -EAGAIN)
		if (poll(&p, 1, -1) < 0 && errno != EINTR)
			return -errno;
	return r;
}

static void take_fds(struct msghdr *m, struct json_packet *ret)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		ret->n_fds = (unsigned)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		memcpy(ret->fds, CMSG_DATA(c), ret->n_fds * sizeof(int));
	}
}

static int json_packet_receive_from(int fd, int flags, bool with_fds, struct json_packet *ret)
{
	cleanup(freep) char *text = malloc(JSON_PACKET_SIZE_MAX);
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(JSON_PACKET_FDS_MAX * sizeof(int))];
	} control;
	struct iovec bytes = {.iov_base = text, .iov_len = JSON_PACKET_SIZE_MAX};
	struct msghdr m = {
		.msg_iov = &bytes,
		.msg_iovlen = 1,
		.msg_control = with_fds ? &control : NULL,
		.msg_controllen = with_fds ? sizeof(control) : 0,
	};
	ssize_t n;

	*ret = (struct json_packet){0};
	if (!text)
		return -ENOMEM;
	do
		n = recvmsg(fd, &m, flags | MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return errno == ECONNRESET ? -EPIPE : -errno;
	take_fds(&m, ret);
	if (n == 0 && ret->n_fds == 0)
		return -EPIPE;
	if (!(m.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
		ret->message = json_loadb(text, (size_t)n, JSON_REJECT_DUPLICATES, NULL);
	if (json_is_object(ret->message))
		return 0;
	json_packet_deinit(ret);
	return -EBADMSG;
}

int json_packet_receive(int fd, int flags, struct json_packet *ret)
{
	return json_packet_receive_from(fd, flags, true, ret);
}

int json_packet_receive_plain(int fd, int flags, struct json_packet *ret)
{
	return json_packet_receive_from(fd, flags, false, ret);
}

void json_packet_deinit(struct json_packet *t)
{
	json_decref(t->message);
	t->message = NULL;
	for (unsigned i = 0; i < t->n_fds; i++)
		t->fds[i] = fd_close(t->fds[i]);
	t->n_fds = 0;
}

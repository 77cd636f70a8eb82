#include "server/restart/notify_recv.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/num.h"

#define LINES_SIZE_MAX 4096 /* systemd takes no more */
#define NAME_LINE "FDNAME="

/* --- The socket ------------------------------------------------------------------------------ */

/* In a folder that no other user may enter: they could fill the queue, and wait for us to die. */
static int bind_in(const char *parent, struct notify_socket *s)
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	char folder[sizeof(sa.sun_path)];
	int n = snprintf(folder, sizeof(folder), "%s/weightd-keeper-XXXXXX", parent);

	if (n < 0 || (size_t)n + sizeof("/notify") > sizeof(folder))
		return -ENAMETOOLONG;
	if (!mkdtemp(folder))
		return -errno;
	memcpy(sa.sun_path, folder, (size_t)n);
	memcpy(sa.sun_path + n, "/notify", sizeof("/notify"));
	if (bind(s->fd, (struct sockaddr *)&sa, sizeof(sa)) < 0) {
		int r = -errno;

		(void)rmdir(folder);
		return r;
	}
	memcpy(s->address, sa.sun_path, sizeof(sa.sun_path));
	return 0;
}

/* Binds to a name that the kernel chooses, without permissions: no file can be written here. */
static int bind_nowhere(struct notify_socket *s)
{
	struct sockaddr_un sa = {.sun_family = AF_UNIX};
	socklen_t size = sizeof(sa);

	if (bind(s->fd, (struct sockaddr *)&sa, sizeof(sa.sun_family)) < 0 ||
	    getsockname(s->fd, (struct sockaddr *)&sa, &size) < 0)
		return -errno;
	memset(s->address, 0, sizeof(s->address));
	memcpy(s->address, sa.sun_path, size - offsetof(struct sockaddr_un, sun_path));
	s->address[0] = '@';
	return 0;
}

int notify_socket_init(struct notify_socket *s)
{
	/* Never a folder of another user for root: its owner could put another in our folder's place. */
	const char *parent = geteuid() == 0 ? "/run" : getenv("XDG_RUNTIME_DIR");
	cleanup(fd_closep) int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct notify_socket new = {.fd = fd};
	int on = 1, r;

	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) < 0)
		return -errno;
	if ((!parent || bind_in(parent, &new) < 0) && bind_in("/tmp", &new) < 0) {
		r = bind_nowhere(&new);
		if (r < 0)
			return r;
	}
	*s = new;
	(void)take_fd(fd);
	return 0;
}

void notify_socket_deinit(struct notify_socket *s)
{
	s->fd = fd_close(s->fd);
	if (s->address[0] != '/')
		return;
	(void)unlink(s->address);
	*strrchr(s->address, '/') = '\0';
	(void)rmdir(s->address);
}

/* --- A message ------------------------------------------------------------------------------- */

static void read_line(struct notify_message *n, const char *line, size_t size)
{
	static const struct {
		const char *line;
		enum notify_word word;
	} words[] = {
		{"READY=1", NOTIFY_READY},          {"STOPPING=1", NOTIFY_STOPPING},
		{"WATCHDOG=1", NOTIFY_WATCHDOG},    {"FDSTORE=1", NOTIFY_STORE},
		{"FDSTOREREMOVE=1", NOTIFY_REMOVE}, {"BARRIER=1", NOTIFY_BARRIER},
	};
	const size_t prefix = strlen(NAME_LINE);

	for (size_t i = 0; i < ARRAY_LEN(words); i++)
		if (size == strlen(words[i].line) && !memcmp(line, words[i].line, size))
			n->words |= words[i].word;
	if (size > prefix && !memcmp(line, NAME_LINE, prefix) &&
	    fdstore_entry_is_name(line + prefix, size - prefix)) {
		memcpy(n->name, line + prefix, size - prefix);
		n->name[size - prefix] = '\0';
	}
}

static void read_lines(struct notify_message *n, const char *s, size_t size)
{
	while (size > 0) {
		const char *newline = memchr(s, '\n', size);
		size_t length = newline ? (size_t)(newline - s) : size;

		read_line(n, s, length);
		s += newline ? length + 1 : length;
		size -= newline ? length + 1 : length;
	}
}

static void read_control(struct notify_message *n, struct msghdr *msg)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		size_t size = c->cmsg_len - CMSG_LEN(0);
		struct ucred cred;

		if (c->cmsg_level != SOL_SOCKET)
			continue;
		if (c->cmsg_type == SCM_CREDENTIALS && size == sizeof(cred)) {
			memcpy(&cred, CMSG_DATA(c), size);
			n->pid = cred.pid;
		} else if (c->cmsg_type == SCM_RIGHTS) {
			memcpy(n->fds, CMSG_DATA(c), size);
			n->n_fds = (unsigned)(size / sizeof(int));
		}
	}
}

int notify_recv(int fd, struct notify_message *ret)
{
	char control[CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(sizeof(ret->fds))]
		__attribute__((aligned(8)));
	char lines[LINES_SIZE_MAX];
	struct iovec iov = {.iov_base = lines, .iov_len = sizeof(lines)};
	struct msghdr msg = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control),
	};
	ssize_t size;

	do
		size = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC);
	while (size < 0 && errno == EINTR);
	if (size < 0)
		return -errno;
	ret->pid = 0;
	ret->words = 0;
	ret->name[0] = '\0';
	ret->n_fds = 0;
	ret->is_whole = !(msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC));
	read_control(ret, &msg);
	read_lines(ret, lines, (size_t)size);
	return 0;
}

void notify_message_deinit(struct notify_message *n)
{
	while (n->n_fds > 0) {
		n->n_fds--;
		n->fds[n->n_fds] = fd_close(n->fds[n->n_fds]);
	}
}

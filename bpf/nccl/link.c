/*
 * Never blocks. After a failure the next attempt waits for a pause, which grows up to 16 s.
 */
#include "bpf/nccl/link.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "ipc/base/fd.h"
#include "ipc/base/num.h"

#define PAUSE_NS 250000000u
#define PAUSE_MAX_NS 16000000000u
#define PATIENCE_NS 5000000000u

/* The descriptor that link_forget() closes. */
static _Atomic int current = -1;

void link_init(struct link *l)
{
	const char *path = getenv("WEIGHTD_TRACE_SOCKET");
	const char *verbose = getenv("WEIGHTD_NCCL_VERBOSE");

	*l = (struct link){.fd = -1,
			   .pause_ns = PAUSE_NS,
			   .is_verbose = verbose && !strcmp(verbose, "1")};
	if (!path || !*path)
		path = "/run/weightd-trace/trace.sock";
	if (strlen(path) < sizeof(l->path))
		(void)strcpy(l->path, path);
}

void link_close(struct link *l)
{
	atomic_store(&current, -1);
	l->fd = fd_close(l->fd);
	l->asked_ns = 0;
	l->try_ns = num_now_ns() + l->pause_ns;
}

void link_forget(void)
{
	int fd = atomic_exchange(&current, -1);

	if (fd >= 0)
		(void)fd_close(fd);
}

/* One line, where somebody asks for it. */
static void link_complain(struct link *l, int r)
{
	char line[256];
	int n;

	if (l->has_complained || !l->is_verbose)
		return;
	l->has_complained = true;
	n = snprintf(line, sizeof(line),
		     "libnccl-profiler-weightd: no weightd-trace on %s (%s); nothing is "
		     "reported\n",
		     l->path, strerror(-r));
	if (n > 0 &&
	    write(STDERR_FILENO, line, n < (int)sizeof(line) ? (size_t)n : sizeof(line) - 1) < 0)
		return;
}

_Static_assert(sizeof(((struct link *)NULL)->path) == sizeof(((struct sockaddr_un *)NULL)->sun_path),
	       "a path fits");

static int connect_to(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd, r;

	if (!*path)
		return -ENAMETOOLONG;
	(void)strcpy(address.sun_path, path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0)
		return fd;
	r = -errno; /* also -EAGAIN, where too many wait for it */
	(void)fd_close(fd);
	return r;
}

void link_open(struct link *l, uint64_t now_ns)
{
	if (l->fd >= 0 || now_ns < l->try_ns)
		return;
	l->fd = connect_to(l->path);
	if (l->fd < 0) {
		link_complain(l, l->fd);
		l->fd = -1;
		l->try_ns = now_ns + l->pause_ns;
		l->pause_ns = l->pause_ns * 2 < PAUSE_MAX_NS ? l->pause_ns * 2 : PAUSE_MAX_NS;
		return;
	}
	atomic_store(&current, l->fd);
	l->number++;
}

bool link_ask(struct link *l, const struct text *t, int fd)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {0};
	struct iovec iov = {.iov_base = (void *)(uintptr_t)t->s, .iov_len = t->n};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};

	if (fd >= 0) {
		m.msg_control = control;
		m.msg_controllen = sizeof(control);
		*CMSG_FIRSTHDR(&m) = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)),
						      .cmsg_level = SOL_SOCKET,
						      .cmsg_type = SCM_RIGHTS};
		memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), &fd, sizeof(int));
	}
	/* There is room: what was asked before was answered. */
	if (sendmsg(l->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)t->n) {
		l->asked_ns = num_now_ns();
		return true;
	}
	link_close(l);
	return false;
}

/* The last packet of an answer begins with this; the packets before it are ignored. */
static enum answer read_answer(const char *s)
{
	static const char end[] = "{\"end\":true";

	if (strncmp(s, end, sizeof(end) - 1) != 0)
		return ANSWER_NONE;
	return s[sizeof(end) - 1] == '}' ? ANSWER_DONE : ANSWER_REFUSED;
}

enum answer link_hear(struct link *l, int timeout_ms)
{
	struct pollfd p = {.fd = l->fd, .events = POLLIN};
	enum answer answer = ANSWER_NONE;
	char s[64];
	ssize_t n;

	(void)poll(&p, 1, timeout_ms);
	while (answer == ANSWER_NONE) {
		n = recv(l->fd, s, sizeof(s) - 1, MSG_DONTWAIT); /* the rest of a packet is dropped */
		if (n < 0 && errno == EAGAIN && num_now_ns() - l->asked_ns < PATIENCE_NS)
			return ANSWER_NONE;
		if (n <= 0) {
			link_close(l);
			return ANSWER_LOST;
		}
		s[n] = '\0';
		answer = read_answer(s);
	}
	l->asked_ns = 0;
	l->pause_ns = PAUSE_NS; /* it is one that answers */
	return answer;
}
